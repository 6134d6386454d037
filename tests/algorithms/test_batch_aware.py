"""Algorithm 2 by hand: four experts, three tokens."""

import pytest
import torch

import xshare
from xshare.algorithms import best, warm_up

G = torch.tensor(
    [
        [0.50, 0.30, 0.15, 0.05],
        [0.10, 0.30, 0.20, 0.40],
        [0.45, 0.35, 0.15, 0.05],
    ]
)  # u = 1.05, 0.95, 0.50, 0.50


def chosen(text, **keywords):
    return xshare.select(G, xshare.Policy.parse(text), **keywords).nonzero().flatten().tolist()


def test_warm_up_is_the_union_of_the_best():
    everyone = torch.ones(3, dtype=torch.bool)
    assert warm_up(best(G, 1), everyone).tolist() == [True, False, False, True]
    assert warm_up(best(G, 2), everyone).tolist() == [True, True, False, True]
    assert warm_up(best(G, 1), torch.tensor([True, False, True])).tolist() == [True, False, False, False]


def test_budget_comes_on_top_of_the_warm_up():
    assert chosen("k0=1,m=0") == [0, 3]
    assert chosen("k0=1,m=1") == [0, 1, 3]  # 0.95 is the best of what is left
    assert chosen("k0=1,m=2") == [0, 1, 2, 3]


def test_without_warm_up_the_largest_sums_win():
    assert chosen("k0=0,m=1") == [0]
    assert chosen("k0=0,m=2") == [0, 1]
    assert chosen("k0=0,m=3") == [0, 1, 2]  # 2 and 3 tie at 0.50


def test_warm_up_ranks_by_choice_and_sums_by_score():
    choice = torch.tensor([[0.0, 0.0, 9.0, 0.0]] * 3)
    assert chosen("k0=1,m=1", choice=choice) == [0, 2]


def test_rows_that_do_not_vote():
    assert chosen("k0=1,m=0", layout=xshare.BatchLayout([0, -1, 1])) == [0]
    assert chosen("k0=1,m=0", layout=xshare.BatchLayout([-1, 5, -1])) == [3]


def test_token_keeps_its_top_k_inside_the_set():
    logits = G.log()
    routing = xshare.route(logits, xshare.RouterSpec.softmax(top_k=2), xshare.Policy.parse("k0=1,m=0"))
    assert routing.ids.tolist() == [[0, 3], [3, 0], [0, 3]]
    torch.testing.assert_close(routing.weights[0], torch.tensor([0.50, 0.05]) / 0.55)
    assert routing.mass.item() == pytest.approx((0.50 / 0.80 + 0.40 / 0.70 + 0.45 / 0.80) / 3)
    assert routing.top1_kept.item() == 1.0


def test_too_small_a_set_is_topped_up_to_k():
    routing = xshare.route(G[:1].log(), xshare.RouterSpec.softmax(top_k=3), xshare.Policy.parse("k0=1,m=0"))
    assert routing.ids.tolist() == [[0, 1, 2]]
    assert routing.selected.tolist() == [True, True, True, False]
