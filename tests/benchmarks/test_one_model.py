"""One model, speed and answers: rows and marks of rounds, computed without an engine."""

import importlib
import sys
from pathlib import Path

import pytest

from xshare.engines.base import Run
from xshare.engines.counters import Stats
from xshare.policy import Policy
from xshare.quality.answering import Outcome

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
one_model = importlib.import_module("one_model")
STATS = {"active": None, "active_native": None, "mass": None, "acted": 1.0, "acted_all": 0.5}


def outcome(policy, marks, seconds):
    right = [mark == "1" for mark in marks]
    run = Run([], decode_s=seconds, rows=100)
    return Outcome(policy, right, [[1, 2] for _ in right], Stats(mean={}), run), STATS


def test_the_marks_of_all_rounds_are_kept_and_give_the_rows():
    policy = Policy.parse("balanced")
    rounds = [
        {"native": outcome(None, "110", 2.0), "balanced": outcome(policy, "101", 1.0)},
        {"native": outcome(None, "011", 4.0), "balanced": outcome(policy, "010", 1.0)},
    ]
    assert one_model.samples_of(rounds) == [
        {"preset": "native", "policy": "native", "right": "110011"},
        {"preset": "balanced", "policy": str(policy), "right": "101010"},
    ]
    native, row = one_model.rows_of(rounds)
    assert (native["accuracy"], row["accuracy"]) == pytest.approx((4 / 6, 3 / 6))
    assert (row["lost"], row["won"], row["change"]) == (2, 1, pytest.approx(-1 / 6))
    assert row["ratio"] == pytest.approx(3.0)  # between 2 and 4
    assert row["samples_tokens_per_s"] == [100, 100]
