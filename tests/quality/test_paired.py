import random

import pytest

from xshare.quality.paired import bounds, mcnemar, needed, paired


def test_by_hand():
    base = [True] * 8 + [False] * 2
    other = [True] * 5 + [False] * 3 + [True] + [False]
    found = paired(base, other)
    assert (found.lost, found.won) == (3, 1)
    assert found.change == pytest.approx(-0.2)
    assert found.p == pytest.approx(2 * (1 + 4) / 16)
    assert found.low < found.change < found.high


@pytest.mark.parametrize(("lost", "won", "p"), [(0, 0, 1), (5, 0, 2 / 32), (0, 5, 2 / 32), (4, 4, 1), (1, 0, 1)])
def test_mcnemar(lost, won, p):
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
        found = paired(base, other)
        covered += found.low <= -0.04 <= found.high
    assert covered > 0.92 * 500


@pytest.mark.parametrize(("lost", "won", "asked"), [(0, 0, 40), (3, 1, 120), (10, 12, 400), (40, 0, 40)])
def test_exact_bounds_hold_what_was_seen_and_narrow_with_alpha(lost, won, asked):
    low, high = bounds(lost, won, asked, 0.05)
    assert low <= (won - lost) / asked <= high
    wider = bounds(lost, won, asked, 0.001)
    assert wider[0] < low or low == -1
    assert wider[1] > high or high == 1


def test_no_loss_seen_bounds_the_loss_as_the_rule_says():
    low, _ = bounds(0, 0, 100, 0.2)  # a quarter of it for this end: (1 - p) ** 100 = 0.05
    assert low == pytest.approx(-(1 - 0.05 ** (1 / 100)), abs=1e-6)


def test_how_many_questions_it_takes():
    def alpha(n):
        return 0.01

    assert needed(5, 0, 100, 0.02, alpha) is None  # worse than allowed: no number of questions helps
    n = needed(0, 0, 40, 0.02, alpha)
    assert bounds(0, 0, n, 0.01)[0] >= -0.02 > bounds(0, 0, n - 60, 0.01)[0]
    assert needed(1, 1, 100, 0.02, alpha) > n
