import functools
import random

import numpy as np
import pytest

from xshare.quality.paired import change_bounds, mcnemar, paired, questions_needed


def test_lost_won_and_change_agree_with_a_count_by_hand():
    base = [True] * 8 + [False] * 2
    other = [True] * 5 + [False] * 3 + [True] + [False]
    comparison = paired(base, other)
    assert (comparison.lost, comparison.won) == (3, 1)
    assert comparison.change == pytest.approx(-0.2)
    assert comparison.p == pytest.approx(2 * (1 + 4) / 16)
    assert comparison.low < comparison.change < comparison.high


@pytest.mark.parametrize(("lost", "won", "p"), [(0, 0, 1), (5, 0, 2 / 32), (0, 5, 2 / 32), (4, 4, 1), (1, 0, 1)])
def test_mcnemars_p_value_is_exact(lost, won, p):
    assert mcnemar(lost, won) == pytest.approx(p)


def test_no_difference_seen_is_not_no_difference():
    few, many = paired([True] * 10, [True] * 10), paired([True] * 1000, [True] * 1000)
    assert few.low < -0.1 < -0.01 < many.low < 0
    assert few.high == pytest.approx(-few.low)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = random.Random(0)
    covered = 0
    for _ in range(500):
        base = [rng.random() < 0.8 for _ in range(120)]
        other = [rng.random() < (0.9 if right else 0.2) for right in base]  # truth: 0.8 * 0.9 + 0.2 * 0.2 - 0.8 = -0.04
        comparison = paired(base, other)
        covered += comparison.low <= -0.04 <= comparison.high
    assert covered > 0.92 * 500


@pytest.mark.parametrize(("lost", "won", "questions"), [(0, 0, 40), (3, 1, 120), (10, 12, 400), (40, 0, 40)])
def test_bounds_hold_what_was_seen_and_narrow_with_alpha(lost, won, questions):
    low, high = change_bounds(lost, won, questions, 0.05)
    assert low <= (won - lost) / questions <= high
    wider = change_bounds(lost, won, questions, 0.001)
    assert wider[0] <= low
    assert wider[1] >= high


def test_bounds_hold_however_often_one_looks():
    """At a true loss of 5 points, the bounds may part from it in one of twenty runs, over all looks together."""
    rng = np.random.default_rng(0)
    of = functools.cache(change_bounds)  # runs often see the same counts
    for lost, won in ((0.05, 0.0), (0.15, 0.1)):
        missed = [0, 0]
        for _ in range(300):
            draws = rng.random(400)
            losses, wins = (draws < lost).cumsum(), (draws > 1 - won).cumsum()
            ends = [of(int(losses[n]), int(wins[n]), n + 1, 0.05) for n in range(9, 400, 10)]
            missed[0] += any(low > -0.05 for low, _ in ends)
            missed[1] += any(high < -0.05 for _, high in ends)
        assert max(missed) <= 0.05 * 300 + 3 * (300 * 0.05 * 0.95) ** 0.5


def test_bounds_become_narrow():
    assert change_bounds(0, 0, 300, 0.05)[0] > -0.02
    low, high = change_bounds(50, 40, 1000, 0.05)
    assert -0.04 < low < -0.01 < high < 0.02
    assert change_bounds(40, 0, 40, 0.05)[0] == pytest.approx(-1, abs=1e-6)  # all of them: no bound on that side
    assert change_bounds(0, 40, 40, 0.05)[0] > 0.7


def test_how_many_questions_it_takes():
    assert questions_needed(5, 0, 100, 0.02, 0.01) is None  # worse than allowed: no number of questions helps
    n = questions_needed(0, 0, 40, 0.02, 0.01)
    assert change_bounds(0, 0, n, 0.01)[0] >= -0.02 > change_bounds(0, 0, n - 60, 0.01)[0]
    assert questions_needed(1, 1, 100, 0.02, 0.01) > n
    assert questions_needed(6, 6, 128, 0.02, 0.01) > 5 * n  # at once, however many they are
    assert questions_needed(13, 11, 128, 0.02, 0.01) is None  # more than anyone asks
