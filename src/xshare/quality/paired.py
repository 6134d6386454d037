"""Two policies on the same questions: what counts is the questions on which they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb, exp, lgamma, log, log1p, sqrt
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
    low, high = count / asked, 1.0
    for _ in range(50):
        share = (low + high) / 2
        low, high = (share, high) if _at_most(count, asked, share) > alpha else (low, share)
    return high


def _lowest(count: int, asked: int, alpha: float) -> float:
    return 1 - _highest(asked - count, asked, alpha)


def _at_most(count: int, asked: int, share: float) -> float:
    """The chance of `count` or fewer."""
    if share >= 1:
        return float(count >= asked)
    if share <= 0:
        return 1.0
    one, rest = log(share), log1p(-share)
    terms = (lgamma(asked + 1) - lgamma(i + 1) - lgamma(asked - i + 1) + i * one + (asked - i) * rest
             for i in range(count + 1))  # fmt: skip
    return sum(map(exp, terms))


def needed(lost: int, won: int, asked: int, bound: float, alpha: Callable[[int], float]) -> int | None:
    """About how many questions until the lower bound is above -bound, if the shares stay; None if never.

    `alpha` is the chance that may be taken with so many questions.
    """
    if (won - lost) / asked <= -bound:
        return None
    n = asked
    while n < 1_000_000:
        if bounds(round(lost / asked * n), round(won / asked * n), n, alpha(n))[0] >= -bound:
            return n
        n += max(20, n // 10)
    return None
