"""What stands in the columns of a row, whoever has written the file."""

from __future__ import annotations

import math
from typing import Any

from xshare.results.file import Row

# The first is written; files of before have either.
ENDS = (("low", "high"), ("lo", "hi"))
COUNTS = ("pairs", "repeats", "rounds")  # any of them says of how many values the medians of a row are
MEDIANS = ("ms", "times", "gain_at_equal_votes")  # and ratios


def number(value: Any) -> float | None:
    """A finite number, or None for anything else a row may hold."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300 or not math.isfinite(value):
        return None
    return float(value)


def interval_of(row: Row, name: str) -> tuple[float, float] | None:
    """The interval of a column, however its ends are spelled; None where the row has none."""
    for low, high in ENDS:
        found = number(row.get(f"{name}_{low}")), number(row.get(f"{name}_{high}"))
        if found[0] is not None and found[1] is not None:
            return found[0], found[1]
    return None


def required_interval(row: Row, name: str) -> tuple[float, float]:
    """The same of a row that must have it: a mistake is told by its column."""
    found = interval_of(row, name)
    if found is None:
        raise KeyError(f"{name}_{ENDS[0][0]}")
    return found


def count_of(row: Row, name: str) -> int | None:
    """Of how many values a median with an interval is; None where the column holds none, or the row does not say."""
    if not (name in MEDIANS or name.endswith("ratio")):
        return None
    samples = row.get("samples_ms")
    found = [*(row.get(each) for each in COUNTS), len(samples) if isinstance(samples, list) else None]
    return next((each for each in found if isinstance(each, int) and not isinstance(each, bool)), None)


def mean_text(row: Row, name: str, digits: int) -> str:
    """A mean of a row with half its interval: `16.3 ±0.1`."""
    low, high = required_interval(row, name)
    return f"{row[name]:.{digits}f} ±{(high - low) / 2:.{digits}f}"
