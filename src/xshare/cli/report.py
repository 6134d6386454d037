"""xshare report: one page of all result files in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from xshare.cli.output import progress_bar
from xshare.errors import XShareError
from xshare.files import check_distinct_paths, check_writable, whole_file
from xshare.report.result_files import read_folder


def report(
    folder: Annotated[Path, typer.Argument(help="A folder with result files (what --out writes).", metavar="DIR")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
) -> None:
    """All results of a folder as one HTML page: first whether to turn selection on and with which policy."""
    from xshare.report.page import STEPS, page

    check_distinct_paths([out], list(folder.glob("*.json")))
    check_writable(out)
    files, notes = read_folder(folder)
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    if not files:
        raise XShareError(f'{str(folder)!r} holds no result file: expected JSON with "provenance" and "rows"')
    with progress_bar("report", STEPS) as advance:
        text = page(files, notes, f"XShare results: {folder.resolve().name or folder}", advance)
    with whole_file(out) as temporary:
        # half a surrogate pair is JSON, but not UTF-8
        temporary.write_bytes(text.encode("utf-8", "xmlcharrefreplace"))
    typer.echo(f"{out}: {len(files)} result file{'s' if len(files) != 1 else ''}")
