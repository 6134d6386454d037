"""Samples -> one row a policy: medians, and paired ratios against native with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from xshare.bench.paired import NATIVE
from xshare.policy import Policy
from xshare.results import Row
from xshare.statistics import median_interval

RATES = ("otps", "otps_total", "ttft_ms_p50", "ttft_ms_p99", "itl_ms_p50", "itl_ms_p99", "step_ms", "rows_per_step")
COUNTS = ("accepted_length", "active", "active_native", "mass", "acted", "identical")
# What each ratio is of; of a time it is native's over the policy's, so that more is always faster.
RATIOS = {"ratio": "otps", "total_ratio": "otps_total", "step_ratio": "step_ms"}


def rows_of(samples: Sequence[Row], control: str, setting: Row) -> list[Row]:
    """`control` is the name of the no-op control, `setting` columns that all rows share."""
    by_name: dict[str, list[Row]] = {}
    for sample in samples:
        by_name.setdefault(sample["policy"], []).append(sample)
    native = {sample["repeat"]: sample for sample in by_name.get(NATIVE, [])}
    rows = []
    for name, mine in by_name.items():
        method = "noop" if name == control else Policy.parse(name).method
        row: Row = {"policy": name, "method": method, **setting, "repeats": len(mine)}
        row |= {column: _median(mine, column) for column in (*RATES, *COUNTS)}
        row["left_alone"] = next((each["left_alone"] for each in mine if each.get("left_alone")), None)
        for ratio, column in RATIOS.items():
            pairs = [_ratio(column, each, native.get(each["repeat"], {})) for each in mine]
            known = [pair for pair in pairs if pair is not None]
            found = median_interval(known) if known else (None, None, None)
            row |= dict(zip((ratio, f"{ratio}_low", f"{ratio}_high"), found, strict=True))
        rows.append(row)
    _fill_native(rows, control)
    return rows


def _median(samples: Sequence[Row], column: str) -> Any:
    known = [sample[column] for sample in samples if sample[column] is not None]
    return median(known) if known else None


def _ratio(column: str, mine: Row, native: Row) -> float | None:
    if mine.get(column) is None or native.get(column) is None:
        return None
    return float(native[column] / mine[column] if column == "step_ms" else mine[column] / native[column])


def _fill_native(rows: list[Row], control: str) -> None:
    """Switched off, an engine counts no experts; the control, which keeps all, has counted them."""
    named = {row["policy"]: row for row in rows}
    if NATIVE in named and control in named and named[NATIVE]["active"] is None:
        found = named[control]["active_native"]
        named[NATIVE] |= {"active": found, "active_native": found, "mass": None if found is None else 1.0}
