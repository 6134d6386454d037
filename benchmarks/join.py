"""Join result files of one benchmark into one: of models that were measured at the same time into separate files.

    python benchmarks/join.py nano.json lab.json --json evidence/frontier.json

No row, sample or stamp is changed. The first file's first run becomes the provenance, every other run one of the
stamps, as if one run had continued the other. The joined file can be continued, too.
"""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated

import typer

from xshare.errors import XShareError
from xshare.files import check_writable, whole_file
from xshare.results import Row
from xshare.results.file import as_text
from xshare.results.resumable import STAMP


def joined(files: list[Row]) -> Row:
    """The contents of one file from those of several. Records name the number of their run, except the first run's."""
    contents = {name: value.copy() for name, value in files[0].items() if name not in ("format", "stamps")}
    stamps = list(files[0].get("stamps", []))
    for file in files[1:]:
        stamp, lists = dict(file["provenance"]), [name for name in file if isinstance(file[name], list)]
        if stamp.pop("fingerprint", None) != contents["provenance"].get("fingerprint"):
            raise XShareError("the files must be of one benchmark, with the same settings: their fingerprints differ")
        first = len(stamps) + 1
        stamps += [stamp, *file.get("stamps", [])]
        for name in lists:
            if name != "stamps":
                contents.setdefault(name, [])
                contents[name] += [record | {STAMP: first + record.get(STAMP, 0)} for record in file[name]]
    return {"format": files[0]["format"], "provenance": contents.pop("provenance"), "stamps": stamps} | contents


def main(
    files: Annotated[list[Path], typer.Argument(help="Result files, two or more.", exists=True, dir_okay=False)],
    json: Annotated[Path, typer.Option(help="The file to write; it must not exist.")],
) -> None:
    check_writable(json)
    if json.exists():
        raise SystemExit(f"{json} exists: name another file, or remove it")
    with whole_file(json) as temporary:
        temporary.write_text(as_text(joined([json_.loads(file.read_text()) for file in files])))


if __name__ == "__main__":
    typer.run(main)
