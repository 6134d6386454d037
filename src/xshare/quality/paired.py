"""Two policies on the same questions: only the questions on which they differ count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb, inf, log, sqrt
from statistics import NormalDist

import numpy as np

MOST = 100_000  # questions: beyond this, `questions_needed` gives up
PLACES = 1 << 30  # resolution of a mean between 0 and 1
STAKES = (np.arange(256) + 0.5) / 256  # shares of the capital that are bet
LOSING = np.log1p(-STAKES)  # log of the capital's change per lost question


@dataclass(frozen=True)
class Paired:
    """Change in accuracy from `base` to `other`, with its 95 % interval and the p value of McNemar's test."""

    change: float
    low: float
    high: float
    p: float
    lost: int  # questions that only the base answers right
    won: int  # questions that only the other answers right


def paired(base: Sequence[bool], other: Sequence[bool], level: float = 0.95) -> Paired:
    """McNemar's exact test, and Agresti and Min's interval for a difference of paired shares.

    The interval adds half a question to each cell. Without that, a small sample without any difference would get an
    interval of width zero, which claims more than the sample shows.
    """
    total = len(base)
    lost = sum(b and not o for b, o in zip(base, other, strict=True))
    won = sum(o and not b for b, o in zip(base, other, strict=True))
    z = NormalDist().inv_cdf(0.5 + level / 2)
    n, b, c = total + 2, lost + 0.5, won + 0.5
    middle, half = (c - b) / n, z * sqrt(b + c - (c - b) ** 2 / n) / n
    low, high = max(-1.0, middle - half), min(1.0, middle + half)  # a change cannot exceed 100 %
    return Paired((won - lost) / total, low, high, mcnemar(lost, won), lost, won)


def mcnemar(lost: int, won: int) -> float:
    """Two-sided p value: by chance, each question on which the two differ goes either way with equal probability."""
    n, k = lost + won, min(lost, won)
    tail: float = sum(comb(n, i) for i in range(k + 1)) / 2**n
    return min(1.0, 2 * tail)


def change_bounds(lost: int, won: int, total: int, alpha: float) -> tuple[float, float]:
    """Bounds of the change in accuracy, for decisions. Each is wrong with probability at most alpha, however often one
    looks at the data and whenever one stops."""
    return _lower(lost, won, total, alpha), -_lower(won, lost, total, alpha)


def _lower(lost: int, won: int, total: int, alpha: float) -> float:
    """By betting (Waudby-Smith and Ramdas, 2024, "Estimating means of bounded random variables by betting").

    A question counts 0 if lost, 1 if won, 1/2 otherwise. A gambler bets a share u of the capital on every question that
    the mean exceeds m. If it does not, the expected gain is not positive, and the capital ever reaches 1/alpha times
    its start with probability at most alpha. The capital is averaged over all u. The bound is the largest m for which
    the capital has grown that far.
    """
    from_lost, same = lost * LOSING, total - lost - won

    def spare(place: int) -> float:
        """Log of the capital over 1/alpha when betting against a mean of place / PLACES. It falls with the mean."""
        m = place / PLACES
        grown = from_lost + won * np.log1p(STAKES * (1 / m - 1)) + same * np.log1p(STAKES * (0.5 / m - 1))
        most = grown.max()
        return float(most + log(np.exp(grown - most).mean()) + log(alpha))

    return 2 * _last_nonnegative(spare, PLACES) / PLACES - 1


def _last_nonnegative(function: Callable[[int], float], high: int) -> int:
    """The last place below `high` where a falling function is not negative, or 0.

    By false position (the Illinois variant), in half the steps of bisection: an end that stays twice gets half its
    weight, because it would otherwise stay for long.
    """
    low, at_low, at_high, rose = 0, inf, function(high), False
    while high - low > 1:
        share = at_low / (at_low - at_high) if low else 0.5  # at 0 the function is infinite
        place = min(max(low + int(share * (high - low)), low + 1), high - 1)
        value = function(place)
        if value >= 0:
            low, at_low, at_high = place, value, at_high / 2 if rose else at_high
        else:
            high, at_high, at_low = place, value, at_low if rose else at_low / 2
        rose = value >= 0
    return low


def questions_needed(lost: int, won: int, total: int, bound: float, alpha: float) -> int | None:
    """About how many questions put the lower bound above -bound if the shares of lost and won questions stay as they
    are; None if more than MOST, or if the loss already exceeds the bound."""

    def enough(n: int) -> bool:
        return change_bounds(round(lost / total * n), round(won / total * n), n, alpha)[0] >= -bound

    if (won - lost) / total <= -bound:
        return None
    low, high = 0, total
    while not enough(high):
        low, high = high, 2 * high
        if low > MOST:
            return None
    while high - low > max(1, high // 50):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
