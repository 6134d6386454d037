"""The table of runs, for render.py: when, where and with which code the records of each result file were made."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Table = tuple[list[str], list[list[str]]]


def stamps(folder: Path) -> Table:
    """One line per run with rows in a file, with its corrections and remarks."""
    titles = ["file", "time", "commit", "machine", "rows", "what else is known"]
    cells = []
    for path in sorted(folder.glob("*.json")):
        results = json.loads(path.read_text())
        counts = Counter(row.get("stamp") for row in results["rows"])
        runs = [(None, results["provenance"]), *enumerate(results.get("stamps", []), 1)]
        for number, stamp in runs:
            remarks = ". ".join(
                [f"{name}: {stamp[name]}".rstrip(".") for name in ("corrects", "remark") if name in stamp]
            )
            if counts[number] or remarks:
                line = [path.stem, stamp["time"].replace("T", " ").removesuffix("+00:00"), _commit(stamp["git"])]
                cells.append([*line, _machine(stamp, number, results), str(counts[number]), remarks])
    return titles, cells


def _commit(named: str | None) -> str:
    if named is None:
        return "not known"
    commit, changes, _ = named.partition("+changes")
    return f"`{commit[:7]}`" + (", with changes" if changes else "")


def _machine(stamp: Row, number: int | None, results: Row) -> str:
    """The machine with its GPU. A stamp that names neither GPU nor device leaves that to its records, or to the file:
    a command adds what its engine says of itself to the provenance, whichever run it is."""
    records = [*results.get("runs", []), *results["rows"]]
    if "gpu" in stamp or "device" in stamp:
        sources = [stamp]
    else:
        own = [record for record in records if record.get("stamp") == number]
        sources = [*own, results["provenance"], *records]
    gpu = next(filter(None, map(_gpu, sources)), None)
    return f"{stamp['machine']}, {gpu}" if gpu else str(stamp["machine"])


def _gpu(record: Row) -> str | None:
    names = [record.get(column) or "" for column in ("gpu", "device")]
    return next((name for name in names if name.startswith("NVIDIA")), None)
