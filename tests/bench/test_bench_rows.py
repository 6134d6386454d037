"""Figures, ratios and intervals against what comes out by hand."""

from math import comb

import pytest

from xshare.bench.run_record import selection_figures, speed_figures
from xshare.bench.summary import COUNTS, RATES, summary_rows
from xshare.cli.bench import notes
from xshare.engines.base import About, Answer, Run
from xshare.engines.counters import Stats
from xshare.statistics import median_interval


def test_figures_of_a_run_by_hand():
    early = Answer([1, 2, 3, 4], "", 0.0, [0.1, 0.2, 0.4, 0.4])  # the last two were accepted together
    late = Answer([1, 2, 3, 4], "", 0.5, [0.6, 0.7, 0.8, 1.0])
    figures = speed_figures(Run([early, late], decode_s=0.6, steps=5, rows=6, drafted=4, accepted=1))
    assert figures["otps"] == pytest.approx((3 / 0.3 + 3 / 0.4) / 2)
    assert figures["otps_total"] == pytest.approx(8 / 1.0)
    assert (figures["ttft_ms_p50"], figures["ttft_ms_p99"]) == pytest.approx((100, 100))
    assert figures["itl_ms_p50"] == pytest.approx(100)  # of 100, 200, 100, 100, 200
    assert figures["itl_ms_p99"] == pytest.approx(200)
    assert figures["step_ms"] == pytest.approx(120)
    assert figures["rows_per_step"] == pytest.approx(1.2)
    assert figures["accepted_length"] == pytest.approx(6 / 5)


def test_what_an_engine_does_not_tell_is_none():
    figures = speed_figures(Run([Answer([], "a", 0.0, [0.1])]))
    assert figures["otps"] is figures["step_ms"] is figures["itl_ms_p50"] is figures["accepted_length"] is None
    nothing = selection_figures(Stats())
    assert set(nothing.values()) == {None}
    pruned = selection_figures(Stats(3, {"prefill": 9, "within_budget": 1, "off": 0}))
    assert (pruned["acted"], pruned["left_alone"]) == (0.75, "within_budget")


def test_steps_that_were_left_alone_are_spoken_of():
    rows = [
        {"policy": "native", "identical": None, "acted": 0.0, "left_alone": "off"},
        {"policy": "k0=1,m=8", "identical": 1.0, "acted": 0.0, "left_alone": "within_budget"},
        {"policy": "k0=1,m=2", "identical": 0.5, "acted": 0.96, "left_alone": "few_rows"},
        {"policy": "k0=1,m=3", "identical": 0.5, "acted": 0.1, "left_alone": "many_rows"},
    ]
    about = About("vllm", None, "tiny", "cpu", drafter="xshare.engines.vllm.drafter.FixedDrafter")
    texts = notes(rows, about, "k0=1,m=8")
    assert [note[:60] for note in texts] == [
        "k0=1,m=8 left 100% of its decode steps alone, mostly by with",
        "k0=1,m=3 left 90% of its decode steps alone, mostly by many_",
        "Drafts are made up: this measures speed, and what is accepte",
    ]


def sample(policy, repeat, otps, step_ms=None, active=None):
    columns = dict.fromkeys((*RATES, *COUNTS))
    counts = {"active": active, "active_native": None if active is None else 20.0}
    return columns | {"policy": policy, "repeat": repeat, "otps": otps, "step_ms": step_ms, **counts}


def test_forms_of_one_policy_are_rows_of_their_own():
    name = "k0=1,m=2"
    samples = []
    for repeat, rate in enumerate((10.0, 20.0)):
        samples += [sample("native", repeat, rate), sample(name, repeat, 2 * rate)]
        samples += [sample(name, repeat, 3 * rate) | {"cost": True}]
        samples += [sample("k0=1,m=3", repeat, 2.5 * rate) | {"equals": name}, sample("k0=1,m=3", repeat, 2 * rate)]
    rows = summary_rows(samples, "k0=1,m=16", {})
    assert [row["ratio"] for row in rows] == pytest.approx([1, 2, 3, 2.5, 2])
    assert [("cost" in row, row.get("equals")) for row in rows] == [
        (False, None), (False, None), (True, None), (False, name), (False, None)
    ]  # fmt: skip
    assert rows[2]["equal_ratio"] == pytest.approx(1.2)
    assert rows[2]["equal_ratio_low"] <= rows[2]["equal_ratio"] <= rows[2]["equal_ratio_high"]
    assert all("equal_ratio" not in row for row in (*rows[:2], *rows[3:]))


def test_ratios_are_paired_by_repeat():
    samples = [
        sample("native", 0, 10.0, 5.0),
        sample("k0=1,m=8", 0, 9.0, 6.0, 20.0),
        sample("k0=1,m=2", 0, 12.0, 4.0, 8.0),
    ]
    samples += [
        sample("native", 1, 20.0, 2.0),
        sample("k0=1,m=8", 1, 19.0, 2.5, 20.0),
        sample("k0=1,m=2", 1, 22.0, 1.0, 10.0),
    ]
    samples += [
        sample("native", 2, 10.0, 4.0),
        sample("k0=1,m=8", 2, 9.5, 4.0, 20.0),
        sample("k0=1,m=2", 2, 13.0, 4.0, 9.0),
    ]
    native, control, policy = summary_rows(samples, "k0=1,m=8", {"batch": 16})
    assert (native["policy"], native["method"], native["batch"]) == ("native", "native", 16)
    assert (control["method"], policy["method"]) == ("noop", "xshare")
    assert native["ratio"] == native["ratio_low"] == native["ratio_high"] == 1
    assert control["ratio"] == pytest.approx(0.95)  # of 0.9, 0.95, 0.95
    assert (policy["ratio"], policy["ratio_low"], policy["ratio_high"]) == pytest.approx((1.2, 1.1, 1.3))
    assert policy["step_ratio"] == pytest.approx(1.25)  # of 1.25, 2, 1
    assert policy["total_ratio"] is None
    assert (policy["otps"], policy["active"], policy["repeats"]) == (13.0, 9.0, 3)
    assert (native["active"], native["mass"]) == (20.0, 1.0)  # switched off it counts nothing; the control has


def test_the_interval_of_a_median_is_what_resampling_gives():
    assert median_interval([2.0]) == (2, 2, 2)
    assert median_interval([1.0, 2.0]) == (1.5, 1, 2)  # both drawn alike in a quarter of the draws, each
    values = [float(n) for n in range(11)]
    middle, low, high = median_interval(values[::-1], draws=20000)

    def at_most(rank):
        """How likely the median of 11 draws is among the `rank` smallest: six of them must be."""
        p = rank / 11
        return sum(comb(11, n) * p**n * (1 - p) ** (11 - n) for n in range(6, 12))

    rank = next(rank for rank in range(1, 12) if at_most(rank) > 0.025)
    assert at_most(rank - 1) < 0.023  # no draw of the dice decides
    assert at_most(rank) > 0.027
    assert (middle, low, high) == (5, values[rank - 1], values[-rank])
