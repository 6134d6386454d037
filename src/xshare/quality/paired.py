"""Two policies on the same questions: what counts is the questions on which they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb, inf, log, sqrt
from statistics import NormalDist

import numpy as np

MOST = 100_000  # questions that anyone would ask
PLACES = 1 << 30  # of a mean, between 0 and 1
STAKES = (np.arange(256) + 0.5) / 256  # shares of a capital that are bet
LOSING = np.log1p(-STAKES)  # what a lost question makes of it, as a logarithm


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
    low, high = max(-1.0, middle - half), min(1.0, middle + half)  # no change is larger than all answers
    return Paired((won - lost) / asked, low, high, mcnemar(lost, won), lost, won)


def mcnemar(lost: int, won: int) -> float:
    """Two-sided: each question on which the two differ could as well have gone the other way."""
    n, k = lost + won, min(lost, won)
    tail: float = sum(comb(n, i) for i in range(k + 1)) / 2**n
    return min(1.0, 2 * tail)


def change_bounds(lost: int, won: int, asked: int, alpha: float) -> tuple[float, float]:
    """Between what the change in accuracy is: either end is wrong with a chance of at most alpha, however often one
    looks and whenever one stops. To decide by."""
    return _lower(lost, won, asked, alpha), -_lower(won, lost, asked, alpha)


def _lower(lost: int, won: int, asked: int, alpha: float) -> float:
    """By betting (Waudby-Smith and Ramdas, 2024, "Estimating means of bounded random variables by betting").

    A question counts 0 if it is lost, 1 if won, 1/2 otherwise. Whoever stakes a share u of his capital on every
    question, on a mean above m, must not expect to gain if it is not; to see his capital multiplied by 1/alpha ever
    then has a chance of at most alpha. The capital is an average over all u. The bound is the largest mean that would
    have made it grow so far.
    """
    gone, alike = lost * LOSING, asked - lost - won

    def spare(place: int) -> float:
        """How far the capital has grown beyond 1/alpha on a mean of place / PLACES, as a logarithm. It falls with the
        mean."""
        m = place / PLACES
        grown = gone + won * np.log1p(STAKES * (1 / m - 1)) + alike * np.log1p(STAKES * (0.5 / m - 1))
        most = grown.max()
        return float(most + log(np.exp(grown - most).mean()) + log(alpha))

    return 2 * _last_nonnegative(spare, PLACES) / PLACES - 1


def _last_nonnegative(of: Callable[[int], float], high: int) -> int:
    """The last place below `high` where a falling function is not negative, or 0.

    By false position, in half the steps that halving takes. An end that stays twice gets half its weight, or it would
    stay for long.
    """
    low, at_low, at_high, rose = 0, inf, of(high), False
    while high - low > 1:
        share = at_low / (at_low - at_high) if low else 0.5  # at 0 the function is infinite
        place = min(max(low + int(share * (high - low)), low + 1), high - 1)
        found = of(place)
        if found >= 0:
            low, at_low, at_high = place, found, at_high / 2 if rose else at_high
        else:
            high, at_high, at_low = place, found, at_low if rose else at_low / 2
        rose = found >= 0
    return low


def questions_needed(lost: int, won: int, asked: int, bound: float, alpha: float) -> int | None:
    """About how many questions until the lower bound is above -bound, if the shares stay; None if too many."""

    def enough(n: int) -> bool:
        return change_bounds(round(lost / asked * n), round(won / asked * n), n, alpha)[0] >= -bound

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
