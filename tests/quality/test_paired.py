import random

import pytest

from xshare.quality.paired import mcnemar, needed, paired


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


def test_how_many_questions_it_takes():
    assert needed(0.05, 0.0, 0.02) is None  # worse than allowed: no number of questions helps
    more, fewer = needed(0.02, 0.015, 0.01), needed(0.02, 0.015, 0.05)
    assert more > fewer > 0
    n = needed(0.02, 0.01, 0.02)
    base = [True] * n
    other = [False] * round(0.02 * n) + [True] * (n - round(0.02 * n))
    assert paired(base, other).low < -0.02  # with the losses alone it would not do
