"""Two policies on the same questions: what counts is the questions on which they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import NormalDist


@dataclass(frozen=True)
class Paired:
    """`right` minus `base` in accuracy, with a 95 % interval, and how likely so lopsided a difference is by chance."""

    change: float
    low: float
    high: float
    p: float
    lost: int  # questions that only the base answers
    won: int  # questions that only the other does


def paired(base: Sequence[bool], other: Sequence[bool], level: float = 0.95) -> Paired:
    """McNemar's exact test, and Agresti and Min's interval for a difference of paired shares.

    The interval adds half a question to each cell: without it, no difference in a small sample would be an interval of
    width zero, which says more than was seen.
    """
    asked = len(base)
    lost = sum(b and not o for b, o in zip(base, other, strict=True))
    won = sum(o and not b for b, o in zip(base, other, strict=True))
    z = NormalDist().inv_cdf(0.5 + level / 2)
    n, b, c = asked + 2, lost + 0.5, won + 0.5
    middle, half = (c - b) / n, z * sqrt(b + c - (c - b) ** 2 / n) / n
    return Paired((won - lost) / asked, middle - half, middle + half, mcnemar(lost, won), lost, won)


def mcnemar(lost: int, won: int) -> float:
    """Two-sided: each question on which the two differ could as well have gone the other way."""
    n, k = lost + won, min(lost, won)
    tail: float = sum(comb(n, i) for i in range(k + 1)) / 2**n
    return min(1.0, 2 * tail)


def needed(lost_share: float, won_share: float, bound: float, level: float = 0.95) -> int | None:
    """About how many questions until the interval's lower end is above -bound, if the shares stay; None if never."""
    change = won_share - lost_share
    if change <= -bound:
        return None
    z = NormalDist().inv_cdf(0.5 + level / 2)
    spread = max(lost_share + won_share - change**2, 1e-9)
    return int(z * z * spread / (change + bound) ** 2) + 1
