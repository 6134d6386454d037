"""Where the benchmarks and their results lie, and how other processes find the benchmarks' modules."""

from __future__ import annotations

import os
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
EVIDENCE = BENCHMARKS.parent / "evidence"


def python_path(*folders: Path) -> str:
    """PYTHONPATH for a process that imports from these folders and from benchmarks/, before what is set already."""
    return os.pathsep.join(filter(None, [*map(str, folders), str(BENCHMARKS), os.environ.get("PYTHONPATH")]))
