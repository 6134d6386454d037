"""Intervals are called what they are: of fewer than six values a median has a range, and no interval of 95 %."""

import itertools
import random

import pytest

from xshare.cli.demo import show_speed
from xshare.report.labels import interval_text
from xshare.results.columns import count_of
from xshare.statistics import FEWEST, coverage, heading_of, interval_mark, interval_names, median_interval


def test_the_range_of_few_values_does_not_cover_95_per_cent():
    for count in range(1, 10):
        # Each of the values lies above the true median, or below it, as heads or tails.
        throws = list(itertools.product((False, True), repeat=count))
        assert coverage(count) == sum(any(throw) and not all(throw) for throw in throws) / len(throws)
        assert (coverage(count) >= 0.95) == (count >= FEWEST)


def test_the_interval_of_few_values_is_their_range():
    for count in range(2, 12):
        values = random.Random(count).sample(range(100), count)
        is_range = median_interval(values)[1:] == (min(values), max(values))
        assert is_range == (count < FEWEST)


def test_intervals_of_few_values_are_called_ranges():
    assert interval_names([8, None, 6]) == ("95 %", ["", "", ""])
    assert interval_names([4, 4]) == ("range of 4", ["", ""])
    assert interval_names([3, 5]) == ("range", [", range of 3", ", range of 5"])
    assert interval_names([12, 4, None]) == ("95 %, or range", ["", ", range of 4", ""])
    assert heading_of([", range of 8, one start"] * 2) == ("range of 8, one start", ["", ""])
    assert heading_of(["", ", range of 8, one start"]) == ("95 %, or range", ["", ", range of 8, one start"])
    assert interval_names([]) == ("95 %", [])
    assert [interval_mark(count) for count in (None, 6, 5)] == ["", "", ", range of 5"]


def test_a_row_says_of_how_many_values_its_medians_are():
    assert count_of({"pairs": 4, "ratio": 1.0}, "ratio") == 4
    assert count_of({"repeats": 5}, "step_ratio") == 5
    assert count_of({"rounds": 8}, "ms") == 8
    assert count_of({"samples_ms": [1.0, 2.0, 3.0]}, "ratio") == 3
    assert count_of({"repeats": 3}, "accuracy") is None  # a share of all questions
    assert count_of({}, "ratio") is None


def test_an_interval_in_words_says_what_it_is():
    assert interval_text((1.0, 0.5, 2.0), str) == "95 %: 0.5 to 2.0"
    assert interval_text((1.0, 0.5, 2.0), str, 5) == "range of 5: 0.5 to 2.0"
    assert interval_text((1.0, 1.0, 1.0), str, 1) == "no interval"


@pytest.mark.parametrize(("repeats", "called"), [(5, "range of 5"), (9, "95 %")])
def test_tables_of_the_command_line(repeats, called, capsys):
    row = {"policy": "native", "batch": 8, "expert_mb": 1.0, "active": 20.0, "active_native": 20.0, "step_ms": 9.0}
    row |= {"ratio": 1.0, "ratio_low": 0.9, "ratio_high": 1.1, "repeats": repeats}
    show_speed([row | {"active": active, "step_ms": active} for active in (20.0, 15.0, 10.0)])
    assert called in capsys.readouterr().out
