"""The arithmetic of the cost benchmark, and one round of it in a tiny engine."""

import importlib
import importlib.util
import json
import sys
from pathlib import Path

import pytest
import staircase_files
import typer
from typer.testing import CliRunner

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
cost_aware = importlib.import_module("cost_aware")
Counted = importlib.import_module("lib.speed_rows").Counted

NATIVE, A, B = 40.0, 3.0, 0.17  # experts; ms, and ms an expert
SLOW = (1.0, 1.3, 0.9, 1.0, 1.1, 1.0, 1.2, 0.95)  # rounds of a machine that gets faster and slower


def lost(active):
    return ((NATIVE - active) / 50) ** 2


def rows_by_point(snapped_active=28.0, snapped_ms=None):
    """Every policy on the law, k0=2,m=0 snapped where it is said to be."""
    sizes = {point: 22.0 + number % 9 for number, point in enumerate(cost_aware.POINTS)}
    sizes |= {("k0=2,m=0", False): 24.0, ("k0=2,m=3", False): 27.0, ("k0=2,m=8", False): 32.0}
    sizes |= {("k0=2,m=0", True): snapped_active}
    step = {point: A + B * size for point, size in sizes.items()}
    if snapped_ms is not None:
        step["k0=2,m=0", True] = snapped_ms
    ms = {point: [slow * step_ms for slow in SLOW] for point, step_ms in step.items()}
    counted = {point: Counted(size, NATIVE, 1 - lost(size)) for point, size in sizes.items()}
    counted[cost_aware.NATIVE] = Counted()  # nothing is counted where nothing is selected
    rows = cost_aware.rows_of({"batch": 16}, ms, counted)
    return {(row["policy"], row["cost"]): row for row in rows}


def test_a_curve_is_followed_between_its_points_and_nowhere_else():
    sizes = (36.0, 30.0, 24.0)
    curve = [lost(size) for size in sizes], [A + B * size for size in sizes]
    for size in (36.0, 33.0, 26.5, 24.0):
        assert cost_aware.at_equal_votes(*curve, lost(size)) == pytest.approx(A + B * size)
    assert cost_aware.at_equal_votes(*curve, lost(37)) is None
    assert cost_aware.at_equal_votes(*curve, lost(23)) is None
    # A point that is slower than one that loses less is noise: both are taken as their mean.
    assert cost_aware.at_equal_votes([0.1, 0.2, 0.3], [8.0, 9.0, 7.0], 0.15) == pytest.approx(8.5)


def test_a_gain_is_paired_and_at_equal_votes():
    rows = rows_by_point()
    row = rows["k0=2,m=0", True]  # where the machine is a straight line there is nothing to gain
    assert row["gain_at_equal_votes"] == pytest.approx(1)
    assert row["gain_low"] == pytest.approx(row["gain_high"])  # slow spells are in both
    assert (row["votes_lost"], row["rounds"]) == (pytest.approx(lost(28)), 8)
    assert row["ms_low"] < row["ms"] <= row["ms_high"]
    free = rows_by_point(snapped_ms=A + B * 24)["k0=2,m=0", True]  # the next four cost nothing
    assert free["gain_at_equal_votes"] == pytest.approx((A + B * 28) / (A + B * 24))
    assert rows_by_point(snapped_active=39.0)["k0=2,m=0", True]["gain_at_equal_votes"] is None
    assert rows["k0=2,m=0", False]["gain_at_equal_votes"] is None
    native = rows[cost_aware.NATIVE]
    assert (native["active"], native["votes_lost"]) == (NATIVE, 0.0)


def test_every_family_has_a_curve_and_what_is_held_against_it():
    for family in cost_aware.FAMILIES:
        points = cost_aware.points_of(family)
        plain, by_cost = ([policy for policy, cost in points if cost is which] for which in (False, True))
        assert len(plain) >= 3
        assert set(by_cost) < set(plain)
        assert by_cost
    assert len(set(cost_aware.POINTS)) == len(cost_aware.POINTS)


@pytest.mark.engine
def test_a_round_in_a_tiny_engine(tmp_path, monkeypatch):
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    where = {"experts": 32, "top_k": 4, "layers": 2}
    stairs = staircase_files.write(tmp_path / "stairs.json", where, {16: (8, 13, 18, 23, 28)})
    path = tmp_path / "cost.json"
    points = [cost_aware.NATIVE, ("k0=2,m=0", False), ("k0=2,m=0", True), ("k0=2,m=3", False), ("k0=2,m=8", False)]
    monkeypatch.setattr(cost_aware, "FAMILIES", {"warm-up": cost_aware.FAMILIES["warm-up"]})
    monkeypatch.setattr(cost_aware, "POINTS", points)
    app = typer.Typer()
    app.command()(cost_aware.main)
    words = ["--stairs", str(stairs), "--tiny", "--layers", "2", "--json", str(path), "--steps", "2", "--rounds", "2"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    rows = {(row["policy"], row["cost"]): row for row in json.loads(path.read_text())["rows"]}
    assert list(rows) == points
    plain, snapped = rows["k0=2,m=0", False], rows["k0=2,m=0", True]
    assert plain["active"] < snapped["active"] < rows[cost_aware.NATIVE]["active"]
    assert snapped["votes_lost"] < plain["votes_lost"]
    assert snapped["gain_at_equal_votes"] > 0
    assert all(row["rounds"] == 2 and row["ms"] > 0 for row in rows.values())
    refused = CliRunner().invoke(app, [*words, "--batch", "32"])
    assert "steps of up to 16 rows, and 32 are asked for" in refused.output
