"""Counters as differences."""

import pytest

from xshare.engines.counters import over_workers, since

BEFORE = {"steps_pruned": 10, "steps_bypassed": {"off": 3, "prefill": 2}, "samples": 2} | {
    "experts_native": [10.0, 20.0], "experts_active": [4.0, 6.0], "mass_kept": [0.5, 0.7]
}  # fmt: skip
NOW = {"steps_pruned": 16, "steps_bypassed": {"off": 3, "prefill": 5, "many_rows": 1}, "samples": 6} | {
    "experts_native": [12.0, 20.0], "experts_active": [5.0, 6.0], "mass_kept": [0.6, 0.7]
}  # fmt: skip


def test_steps_and_figures_since_then():
    stats = since(BEFORE, NOW)
    assert stats.steps_pruned == 6
    assert stats.steps_bypassed == {"prefill": 3, "many_rows": 1}
    assert stats.samples == 4
    assert stats.by_layer["experts_native"] == pytest.approx([13, 20])  # (12 * 6 - 10 * 2) / 4
    assert stats.mean["experts_native"] == pytest.approx(16.5)
    assert stats.mean["mass_kept"] == pytest.approx((0.65 + 0.7) / 2)


def test_a_change_of_policy_has_cleared_the_figures():
    stats = since(NOW | {"steps_pruned": 16}, BEFORE | {"steps_pruned": 20})
    assert stats.steps_pruned == 4
    assert stats.samples == 2
    assert stats.by_layer["experts_active"] == [4, 6]


def test_nothing_sampled_nothing_said():
    assert since(NOW, NOW).mean == {}
    bare = {"steps_pruned": 0, "steps_bypassed": {}}  # metrics are off
    assert since(bare, bare).mean == {}


def stage(*numbers, **more):
    """What a worker answers whose pipeline stage has these layers."""
    stats = {"layers": [f"model.layers.{number}.mlp" for number in numbers], "experts": 8 + len(numbers), "top_k": 2}
    stats |= {"expert_bytes": 10 * len(numbers), "host_layers": 0, "routed_layers": len(numbers), "backend": "A"}
    return stats | {"steps_pruned": 5, "experts_active": [number / 2 for number in numbers]} | more


def test_workers_of_one_stage_have_counted_the_same():
    assert over_workers([stage(0, 1), stage(0, 1)]) == stage(0, 1)


def test_stages_are_put_together_in_the_order_of_the_model():
    whole = over_workers([stage(10, 11, backend="B"), stage(), stage(10, 11, backend="B"), stage(2, 3, 4)])
    assert whole["layers"] == [f"model.layers.{number}.mlp" for number in (2, 3, 4, 10, 11)]
    assert whole["experts_active"] == [1.0, 1.5, 2.0, 5.0, 5.5]
    assert (whole["experts"], whole["top_k"], whole["expert_bytes"], whole["routed_layers"]) == (11, 2, 50, 5)
    assert (whole["backend"], whole["steps_pruned"]) == ("A, B", 5)
    assert over_workers([stage(1), stage(2, expert_bytes=None)])["expert_bytes"] is None
