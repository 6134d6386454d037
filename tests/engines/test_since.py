"""Counters as differences."""

import pytest

from xshare.engines.counting import since

BEFORE = {"steps_pruned": 10, "steps_bypassed": {"off": 3, "prefill": 2}, "samples": 2} | {
    "experts_native": [10.0, 20.0], "experts_active": [4.0, 6.0], "mass_kept": [0.5, 0.7]
}  # fmt: skip
NOW = {"steps_pruned": 16, "steps_bypassed": {"off": 3, "prefill": 5, "many_rows": 1}, "samples": 6} | {
    "experts_native": [12.0, 20.0], "experts_active": [5.0, 6.0], "mass_kept": [0.6, 0.7]
}  # fmt: skip


def test_steps_and_figures_since_then():
    found = since(BEFORE, NOW)
    assert found.steps_pruned == 6
    assert found.steps_bypassed == {"prefill": 3, "many_rows": 1}
    assert found.samples == 4
    assert found.by_layer["experts_native"] == pytest.approx([13, 20])  # (12 * 6 - 10 * 2) / 4
    assert found.mean["experts_native"] == pytest.approx(16.5)
    assert found.mean["mass_kept"] == pytest.approx((0.65 + 0.7) / 2)


def test_a_change_of_policy_has_cleared_the_figures():
    found = since(NOW | {"steps_pruned": 16}, BEFORE | {"steps_pruned": 20})
    assert found.steps_pruned == 4
    assert found.samples == 2
    assert found.by_layer["experts_active"] == [4, 6]


def test_nothing_sampled_nothing_said():
    assert since(NOW, NOW).mean == {}
    bare = {"steps_pruned": 0, "steps_bypassed": {}}  # metrics are off
    assert since(bare, bare).mean == {}
