"""Intervals for means, medians and shares."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FEWEST = 6  # values that a 95 % interval of a median needs: see `coverage`


def interval(values: NDArray[np.float64], seed: int = 0, blocks: int = 20, draws: int = 2000) -> tuple[float, float]:
    """Bootstrap 95 % interval of the mean, over blocks of neighbouring values.

    Neighbouring batches of a trace come from the same sequences, so resampling them one by one would make the interval
    too narrow.
    """
    means = np.array([block.mean() for block in np.array_split(values, min(blocks, len(values)))])
    picks = np.random.default_rng(seed).integers(len(means), size=(draws, len(means)))
    low, high = np.quantile(means[picks].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def median_interval(values: Sequence[float], seed: int = 0, draws: int = 2000) -> tuple[float, float, float]:
    """(median, low, high): a median and its bootstrap 95 % interval. For paired ratios, where one slow spell must not
    decide.

    With fewer than FEWEST values the interval is their range, and must be called that: see `interval_names`.
    """
    resamples = np.random.default_rng(seed).choice(values, (draws, len(values)))
    low, high = np.quantile(np.median(resamples, axis=1), [0.025, 0.975])
    return float(np.median(values)), float(low), float(high)


def coverage(count: int) -> float:
    """The probability that the true median lies between the smallest and largest of `count` values: 0.875 for 4."""
    return 1 - 2.0 ** (1 - count)


def interval_names(counts: Sequence[int | None]) -> tuple[str, list[str]]:
    """The heading of a column of intervals, `95 %` or `range of 4`, and a mark per row where rows differ.

    `counts`: per row, the number of values behind its median; None for no median, or for many values.
    """
    return heading_of([interval_mark(count) for count in counts])


def heading_of(marks: Sequence[str]) -> tuple[str, list[str]]:
    """The same by the rows' marks: empty for a 95 % interval, `, range of 4` for another one."""
    if not any(marks):
        return "95 %", list(marks)
    if len(set(marks)) == 1:
        return marks[0].removeprefix(", "), [""] * len(marks)
    return "range" if all(marks) else "95 %, or range", list(marks)


def interval_mark(count: int | None) -> str:
    """The mark of an interval that is not a 95 % one: `, range of 4`."""
    return "" if count is None or count >= FEWEST else f", range of {count}"


def share_interval(right: int, asked: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: it stays within 0 and 1, and is not empty if all or none are right."""
    share, spread = right / asked, z * z / asked
    middle, half = share + spread / 2, z * (share * (1 - share) / asked + spread / asked / 4) ** 0.5
    return (middle - half) / (1 + spread), (middle + half) / (1 + spread)
