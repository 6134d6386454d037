"""BatchLayout and Placement, and what select and route refuse."""

import re

import pytest
import torch

import xshare
from xshare import BatchLayout, LayoutError, Placement, Policy, PolicyError, RouterError, RouterSpec

SCORES = torch.rand(4, 6, generator=torch.Generator().manual_seed(0))
POLICY = Policy.parse("k0=1,m=1")


def test_contiguous_gives_the_remainder_to_the_first_devices():
    assert Placement.contiguous(10, 4).devices.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    assert Placement.contiguous(2, 3).devices.tolist() == [0, 1]
    assert Placement.contiguous(2, 3).num_devices == 3


def test_round_robin_deals_experts_in_turn():
    assert Placement.round_robin(5, 2).devices.tolist() == [0, 1, 0, 1, 0]


def test_slots_are_consecutive_whatever_the_ids():
    layout = BatchLayout([41, 7, 41, -1, 7, 100])
    assert layout.slots.tolist() == [2, 1, 2, 0, 1, 3]
    assert layout.num_slots == 4
    assert layout.voting.tolist() == [True, True, True, False, True, True]


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: BatchLayout([0, -2]), "requests"),
        (lambda: BatchLayout([0.5, 1.0]), "requests"),
        (lambda: BatchLayout([True, False]), "requests"),
        (lambda: BatchLayout(3), "requests"),
        (lambda: BatchLayout(["a"]), "requests"),
        (lambda: BatchLayout(torch.tensor(3)), "requests"),
        (lambda: Placement.of([0, None, 1]), "placement"),
        (lambda: Placement.of([0, -1, 1]), "expert 1"),
        (lambda: Placement.of([]), "placement"),
        (lambda: Placement.of([0, 3], num_devices=2), "device 3"),
        (lambda: Placement.contiguous(4, 0), "device"),
        (lambda: Placement.contiguous("4", 2), "num_experts"),
        (lambda: Placement.of([0, 1], num_devices=2.5), "num_devices"),
        (lambda: xshare.select(SCORES, POLICY, layout=[0, 1, 2, 3]), "layout"),
        (lambda: xshare.select(SCORES, POLICY, placement=[0] * 6), "placement"),
        (lambda: xshare.select(SCORES, POLICY, placement=Placement(torch.zeros(3, 6).long())), "placement"),
        (lambda: xshare.select(SCORES, POLICY, choice=SCORES.tolist()), "choice"),
        (lambda: xshare.select(SCORES, POLICY, layout=BatchLayout([0, 1])), "requests"),
        (lambda: xshare.select(SCORES, POLICY, layout=BatchLayout(torch.zeros(2, 4).long())), "requests"),
        (lambda: xshare.select(SCORES, Policy.parse("k0=1,mg=1")), "placement is required"),
        (lambda: xshare.select(SCORES, POLICY, placement=Placement.of([0, 0, 1])), "placement"),
        (lambda: xshare.select(SCORES[0], POLICY), "scores"),
        (lambda: xshare.select(SCORES.long(), POLICY), "scores"),
        (lambda: xshare.select([[0.1]], POLICY), "scores"),
        (lambda: xshare.select(SCORES, POLICY, choice=SCORES[:2]), "choice"),
        (lambda: xshare.route(SCORES[0], RouterSpec.softmax(2), POLICY), "logits"),
    ],
)
def test_what_does_not_fit_is_named(call, names):
    with pytest.raises(LayoutError) as caught:
        call()
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda: xshare.select(SCORES, Policy(warmup=7)), PolicyError, "warmup (k0)"),
        (lambda: xshare.route(SCORES, RouterSpec.softmax(2), Policy(warmup=7)), PolicyError, "warmup (k0)"),
        (lambda: xshare.select(SCORES, 3), PolicyError, "a policy must be a string or a mapping"),
        (lambda: xshare.select(SCORES, Policy.parse("native")), PolicyError, "route()"),
        (lambda: xshare.route(SCORES, RouterSpec.softmax(9), POLICY), RouterError, "top_k"),
        (lambda: xshare.route(SCORES, RouterSpec.for_model("mixtral"), POLICY), RouterError, "expected 8"),
        (lambda: xshare.route(SCORES, "softmax", POLICY), RouterError, "router"),
        (
            lambda: xshare.route(SCORES, RouterSpec.sigmoid(2, correction_bias=torch.zeros(3, 6)), POLICY),
            RouterError,
            "bias",
        ),
    ],
)
def test_policies_and_routers_that_do_not_fit_are_named(call, error, names):
    with pytest.raises(error) as caught:
        call()
    assert names in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("protected", "names"),
    [
        ([4], "row 4, and the rows are 0 to 3"),
        ([-1], "row -1"),
        ([3], "row 3, which does not vote"),
        ([False, False, False, True], "row 3, which does not vote"),
        ([True, False], "True or False for 4 rows, not [2]"),
        (torch.tensor([0.5]), "protected must be whole numbers"),
    ],
)
def test_protected_rows_that_cannot_be(protected, names):
    with pytest.raises(LayoutError, match=re.escape(names)):
        BatchLayout([0, 0, 1, -1], protected=protected)


def test_protected_rows_by_number_or_by_mark():
    for protected in ([1], torch.tensor([1]), [False, True, False, False], torch.tensor([False, True, False, False])):
        assert BatchLayout([0, 0, 1, -1], protected=protected).protected.tolist() == [False, True, False, False]
    with pytest.raises(LayoutError, match=r"call route\(\)"):
        xshare.select(SCORES, POLICY, layout=BatchLayout([0, 0, 1, -1], protected=[1]))


@pytest.mark.parametrize(
    ("cost", "names"),
    [
        ([0, 1, 2], "7 numbers, for 0 to 6 experts, not of shape [3]"),
        (["a"] * 7, "7 numbers"),
        ([0, 1, 2, 3, 4, 3, 5], "never fall"),
        ([0, 1, 2, 3, 4, 5, float("inf")], "finite"),
    ],
)
def test_costs_that_cannot_be(cost, names):
    with pytest.raises(LayoutError, match=re.escape(names)):
        xshare.route(SCORES, RouterSpec.softmax(2), POLICY, cost=cost)
