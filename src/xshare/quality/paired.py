"""Two policies on the same questions: what counts is the questions on which they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import comb, log, log1p, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

MOST = 100_000  # questions that anyone would ask


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


def bounds(lost: int, won: int, asked: int, alpha: float) -> tuple[float, float]:
    """Between what the change in accuracy is, but for a chance of alpha: exact, from Clopper and Pearson's bounds of
    the two shares. To decide by: with few differing answers the interval above is too narrow."""
    each = alpha / 4  # two shares, two ends
    return (
        _lowest(won, asked, each) - _highest(lost, asked, each),
        _highest(won, asked, each) - _lowest(lost, asked, each),
    )


def _highest(count: int, asked: int, alpha: float) -> float:
    """The share at which so few would be seen with a chance of alpha."""
    return _between(count / asked, 1.0, lambda share: _at_most(count, asked, share) > alpha)


def _lowest(count: int, asked: int, alpha: float) -> float:
    """The share at which so many would be."""
    return _between(0.0, count / asked, lambda share: 1 - _at_most(count - 1, asked, share) < alpha)


def _between(low: float, high: float, too_low: Callable[[float], bool]) -> float:
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if too_low(middle) else (low, middle)
    return (low + high) / 2


def _at_most(count: int, asked: int, share: float) -> float:
    """The chance of `count` or fewer."""
    if count < 0 or share >= 1:
        return float(count >= asked)
    if share <= 0:
        return 1.0
    factorial, i = _log_factorials(asked.bit_length()), np.arange(count + 1)
    ways = factorial[asked] - factorial[i] - factorial[asked - i]
    return float(np.exp(ways + i * log(share) + (asked - i) * log1p(-share)).sum())


@cache
def _log_factorials(bits: int) -> NDArray[np.float64]:
    return np.concatenate([[0.0], np.log(np.arange(1, 1 << bits)).cumsum()])


def needed(lost: int, won: int, asked: int, bound: float, alpha: Callable[[int], float]) -> int | None:
    """About how many questions until the lower bound is above -bound, if the shares stay; None if nobody asks as many.

    `alpha` is the chance that may be taken with so many questions.
    """

    def enough(n: int) -> bool:
        return bounds(round(lost / asked * n), round(won / asked * n), n, alpha(n))[0] >= -bound

    if (won - lost) / asked <= -bound:
        return None
    low, high = 0, asked
    while not enough(high):
        low, high = high, 2 * high
        if low > MOST:
            return None
    while high - low > max(1, high // 50):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
