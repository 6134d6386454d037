"""Algorithms 3 and 4 by hand: two requests that want different experts."""

import torch
from hypothesis import given
from hypothesis import strategies as st

import xshare

# Two rows of request A, two of request B; six experts.
G = torch.tensor(
    [
        [0.60, 0.20, 0.10, 0.10, 0.00, 0.00],  # A
        [0.30, 0.40, 0.20, 0.10, 0.00, 0.00],  # A   sums 0.90 0.60 0.30 0.20 0.00 0.00
        [0.00, 0.00, 0.05, 0.05, 0.50, 0.40],  # B
        [0.00, 0.05, 0.00, 0.15, 0.50, 0.30],  # B   sums 0.00 0.05 0.05 0.20 1.00 0.70
    ]
)


def chosen(text, requests, rows=G):
    layout = xshare.BatchLayout(requests)
    return xshare.select(rows, xshare.Policy.parse(text), layout=layout).nonzero().flatten().tolist()


def test_each_request_adds_its_own_best():
    assert chosen("k0=1,m=0", [0, 0, 1, 1]) == [0, 1, 4]
    assert chosen("k0=1,mr=1", [0, 0, 1, 1]) == [0, 1, 2, 4, 5]  # A: {0,1}+2, B: {4}+5
    assert chosen("k0=0,mr=1", [0, 0, 1, 1]) == [0, 4]


def test_batch_budget_comes_after_the_union():
    assert chosen("k0=0,mr=1,m=1", [0, 0, 1, 1]) == [0, 4, 5]  # sums of the rest: 0.65 0.35 0.40 0.70 -> expert 5
    assert chosen("k0=0,mr=1,tau=0.55", [0, 0, 1, 1]) == [0, 4, 5]  # f = 1.9 < 2.2, then 2.6


def test_ragged_and_interleaved_rows():
    assert chosen("k0=0,mr=1", [7, 2, 2, 2]) == [0, 4]  # A's first row alone; the others together want expert 4
    assert chosen("k0=0,mr=1", [0, 1, 0, 1]) == [0, 4]  # sums 0.60 .20 .15 .15 .50 .40 and .30 .45 .20 .25 .50 .30


def test_a_request_without_a_vote_adds_nothing():
    assert chosen("k0=0,mr=1", [0, 0, -1, -1]) == [0]
    assert chosen("k0=0,mr=2", [-1, -1, -1, -1]) == []
    bad = G.clone()
    bad[2:] = torch.nan
    assert chosen("k0=1,mr=1", [0, 0, 1, 1], bad) == [0, 1, 2]


def test_ties_inside_a_request_go_to_the_lower_expert():
    assert chosen("k0=0,mr=2", [0], torch.tensor([[0.1, 0.2, 0.2, 0.2]])) == [1, 2]


@given(st.integers(0, 3), st.integers(0, 6), st.integers(0, 2**31))
def test_without_request_budget_it_is_algorithm_2(k0, m, seed):
    if k0 + m == 0:
        return
    scores = torch.rand(7, 6, generator=torch.Generator().manual_seed(seed))
    policy = xshare.Policy(warmup=k0, batch_budget=m)
    layout = xshare.BatchLayout([0, 0, 0, 1, 1, 2, 2])
    assert torch.equal(xshare.select(scores, policy, layout=layout), xshare.select(scores, policy))
