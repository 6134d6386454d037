"""Values from the columns of a row, in a file of any version."""

from __future__ import annotations

import math
from typing import Any

from xshare.results.file import Row

# Suffixes of an interval's columns: new files have the first pair, older ones either.
ENDS = (("low", "high"), ("lo", "hi"))
COUNTS = ("pairs", "repeats", "rounds")  # columns that hold the number of values behind a row's medians
MEDIANS = ("ms", "times", "gain_at_equal_votes")  # and ratios


def number(value: Any) -> float | None:
    """A finite number, or None for anything else a row may hold."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300 or not math.isfinite(value):
        return None
    return float(value)


def interval_of(row: Row, name: str) -> tuple[float, float] | None:
    """The interval of a column, with either suffixes; None if the row has none."""
    for low_suffix, high_suffix in ENDS:
        low, high = number(row.get(f"{name}_{low_suffix}")), number(row.get(f"{name}_{high_suffix}"))
        if low is not None and high is not None:
            return low, high
    return None


def required_interval(row: Row, name: str) -> tuple[float, float]:
    """The interval of a column that must have one; a KeyError names the missing column."""
    interval = interval_of(row, name)
    if interval is None:
        raise KeyError(f"{name}_{ENDS[0][0]}")
    return interval


def count_of(row: Row, name: str) -> int | None:
    """The number of values behind a column's median; None if the column is no median, or the row does not say."""
    if not (name in MEDIANS or name.endswith("ratio")):
        return None
    samples = row.get("samples_ms")
    counts = [*(row.get(column) for column in COUNTS), len(samples) if isinstance(samples, list) else None]
    return next((count for count in counts if isinstance(count, int) and not isinstance(count, bool)), None)


def mean_text(row: Row, name: str, digits: int) -> str:
    """A mean of a row with half its interval: `16.3 ±0.1`."""
    low, high = required_interval(row, name)
    return f"{row[name]:.{digits}f} ±{(high - low) / 2:.{digits}f}"
