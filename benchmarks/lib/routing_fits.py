"""The dummy router's settings that fit_routing.py has found, for the benchmarks that load dummy weights."""

from __future__ import annotations

import json
from pathlib import Path

from lib.paths import EVIDENCE
from xshare.results import Row


def fits(path: Path = EVIDENCE / "fit_routing.json") -> dict[str, Row]:
    """By regime (`fitted`, `carried`): skew and correlation, as the load format `xshare_dummy` takes them."""
    rows: list[Row] = json.loads(path.read_text())["fit"]
    return {row["regime"]: {name: float(row[name]) for name in ("skew", "correlation")} for row in rows}
