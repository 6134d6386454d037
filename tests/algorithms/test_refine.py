"""Refinement by hand: the group rule after S, empty slots, weights of each kind of router."""

import math

import pytest
import torch

import xshare
from xshare import BatchLayout, Policy, RouterSpec


def logit(p):
    return math.log(p / (1 - p))


def grouped(k, **more):
    """Eight experts in four groups of two, two groups stay."""
    return RouterSpec.sigmoid(k, n_group=4, topk_group=2, **more)


ROW = torch.tensor([[logit(p) for p in (0.90, 0.10, 0.60, 0.55, 0.50, 0.45, 0.80, 0.05)]], dtype=torch.float64)
# group sums 1.00, 1.15, 0.95, 0.85: groups 1 and 0 stay


def test_native_groups_are_judged_by_their_two_best():
    routing = xshare.route(ROW, grouped(3), Policy.parse("native"))
    assert routing.ids.tolist() == [[0, 2, 3]]


def test_set_comes_before_the_group_rule():
    # A second row makes S = {2, 4, 6, 7}: groups are then judged by 2 (0.60), 4 (0.50) and 6 + 7 (0.85).
    other = torch.tensor([[logit(p) for p in (0.01, 0.01, 0.9, 0.01, 0.9, 0.01, 0.9, 0.9)]], dtype=torch.float64)
    rows = torch.cat([ROW, other])
    routing = xshare.route(rows, grouped(3), Policy.parse("k0=0,m=4,score=full"), layout=BatchLayout([-1, 0]))
    assert routing.selected.nonzero().flatten().tolist() == [2, 4, 6, 7]
    assert routing.ids[0].tolist() == [6, 2, 7]  # group 3, then group 1


def test_row_with_too_few_experts_repeats_its_best_at_weight_zero():
    # S has one expert in each group, so two groups give two experts, and k is 3.
    other = torch.tensor([[logit(0.9 if j in (1, 3, 5, 6) else 0.01) for j in range(8)]], dtype=torch.float64)
    rows = torch.cat([ROW, other])
    router = grouped(3, routed_scaling_factor=2.5)
    routing = xshare.route(rows, router, Policy.parse("k0=0,m=4,score=full"), layout=BatchLayout([-1, 0]))
    assert routing.ids[0].tolist() == [6, 3, 6]
    torch.testing.assert_close(routing.weights[0], torch.tensor([0.8, 0.55, 0.0]).double() * 2.5 / 1.35)


def test_native_experts_in_the_set_keep_their_slots_whatever_the_groups():
    # S = {0, 3, 4, 6}: by what is left, groups 0 and 3 would stay, and expert 3 would be lost though S holds it.
    other = torch.tensor([[logit(0.9 if j in (0, 3, 4, 6) else 0.01) for j in range(8)]], dtype=torch.float64)
    rows = torch.cat([ROW, other])
    routing = xshare.route(rows, grouped(3), Policy.parse("k0=0,m=4,score=full"), layout=BatchLayout([-1, 0]))
    assert routing.ids[0].tolist() == [0, 6, 3]


def test_warm_up_obeys_the_native_group_rule():
    # Expert 6 (0.80) is the row's second best, but its group does not stay natively.
    routing = xshare.route(ROW, grouped(2), Policy.parse("k0=2,m=0"))
    assert routing.selected.nonzero().flatten().tolist() == [0, 2]


def test_correction_bias_ranks_but_does_not_weigh():
    bias = torch.tensor([0.0, 0.9, 0.0, 0.0])
    logits = torch.tensor([[logit(p) for p in (0.6, 0.2, 0.5, 0.1)]], dtype=torch.float64)
    router = RouterSpec.sigmoid(2, correction_bias=bias)
    routing = xshare.route(logits, router, Policy.parse("k0=2,m=0"))
    assert routing.ids.tolist() == [[1, 0]]
    torch.testing.assert_close(routing.weights, torch.tensor([[0.25, 0.75]]).double())


def test_router_that_does_not_renormalise_keeps_unmasked_scores():
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    other = torch.tensor([[0.1, 0.1, 0.8]]).log()
    router = RouterSpec.softmax(1, renormalize=False)
    routing = xshare.route(torch.cat([logits, other]), router, Policy.parse("k0=0,m=1"), layout=BatchLayout([-1, 0]))
    assert routing.ids.tolist() == [[2], [2]]
    torch.testing.assert_close(routing.weights, torch.tensor([[0.2], [0.8]]))  # 0.2, not 1: S does not inflate it


@pytest.mark.parametrize("gap", [50.0, 1e4, math.inf])
def test_weights_survive_a_set_without_the_rows_best(gap):
    """Every expert in S may score zero for a row: still finite weights that sum to one."""
    rows = torch.tensor([[0.0, -gap, -gap, -gap], [-9.0, 0.0, 0.0, -9.0]])
    routing = xshare.route(rows, RouterSpec.softmax(2), Policy.parse("k0=0,m=2"), layout=BatchLayout([-1, 0]))
    assert routing.ids[0].tolist() == [1, 2]
    torch.testing.assert_close(routing.weights[0], torch.tensor([0.5, 0.5]))


def test_scores_of_the_chosen_only():
    """score=topk: u counts an expert only for rows that have it in their top-k."""
    logits = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.5, 0.3, 0.2]]).log()
    router = RouterSpec.softmax(1)
    by_full = xshare.route(logits, router, Policy.parse("k0=0,m=1,score=full"))
    by_topk = xshare.route(logits, router, Policy.parse("k0=0,m=1"))
    assert by_full.selected.tolist() == [False, True, False]  # 1.1, 1.2, 0.7
    assert by_topk.selected.tolist() == [True, False, False]  # two rows against one
