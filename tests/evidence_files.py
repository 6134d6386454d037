"""The result files in evidence/, as the tests of them see them: whole, or altered to see whether a test notices."""

import functools
import json
from math import comb, sqrt
from pathlib import Path

import pytest

EVIDENCE = Path(__file__).parent.parent / "evidence"
ALTERED = {}  # by name: the content that `content` gives in place of a file's
ASKED = set()  # names that were asked for


def names():
    return sorted(path.stem for path in EVIDENCE.glob("*.json"))


@functools.cache
def stored(name):
    return json.loads((EVIDENCE / f"{name}.json").read_text())


def content(name):
    """What a file holds; nobody may change it."""
    ASKED.add(name)
    return ALTERED.get(name) or stored(name)


def wilson(right, questions, z=1.96):
    """Solved as the quadratic that it is: the shares from which the one that was seen lies z standard errors away."""
    a, b, c = 1 + z * z / questions, -2 * right / questions - z * z / questions, (right / questions) ** 2
    root = sqrt(b * b - 4 * a * c)
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


def check_accuracy(row, right):
    assert row["accuracy"] == pytest.approx(right / row["questions"])
    assert (row["accuracy_low"], row["accuracy_high"]) == pytest.approx(wilson(right, row["questions"]))


def check_change(row, lost, won, questions, ends=("change_low", "change_high")):
    """A change in accuracy by the questions that one of two policies alone has right."""
    assert (row["lost"], row["won"], row["change"]) == (lost, won, pytest.approx((won - lost) / questions))
    # Agresti and Min: half a question more in each of the four cells.
    share_lost, share_won = (lost + 0.5) / (questions + 2), (won + 0.5) / (questions + 2)
    difference = share_won - share_lost
    half = 1.959964 * sqrt((share_lost + share_won - difference**2) / (questions + 2))
    assert [row[end] for end in ends] == pytest.approx(
        [max(-1, difference - half), min(1, difference + half)], abs=1e-6
    )
    tail = 2 * sum(comb(lost + won, k) for k in range(min(lost, won) + 1)) / 2 ** (lost + won)
    assert row["p"] == pytest.approx(min(1, tail), abs=0)
