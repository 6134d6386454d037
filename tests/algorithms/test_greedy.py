"""Algorithm 1: hand-worked, and optimal by brute force."""

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from xshare.algorithms import best, fixed_point, greedy, greedy_mass, rank


def mask(N, experts):
    return torch.tensor([j in experts for j in range(N)])


def experts(mask):
    return set(mask.nonzero().flatten().tolist())


U = torch.tensor([5, 9, 1, 9, 7, 0])  # column sums of six experts


@pytest.mark.parametrize(
    ("S0", "budget", "S"),
    [
        (set(), 0, set()),
        (set(), 1, {1}),  # 1 and 3 tie at 9: the lower index goes first
        (set(), 3, {1, 3, 4}),
        ({2}, 2, {2, 1, 3}),  # the budget counts experts added, not the size
        ({1, 3}, 1, {1, 3, 4}),
        ({5}, 99, {0, 1, 2, 3, 4, 5}),
    ],
)
def test_budget_by_hand(S0, budget, S):
    assert experts(greedy(U, mask(6, S0), budget)) == S


@pytest.mark.parametrize(
    ("S0", "tau", "S"),
    [
        (set(), 0.0, set()),
        (set(), 0.29, {1}),  # f(E) = 31, 9 / 31 = 0.2903
        (set(), 0.3, {1, 3}),
        ({2}, 0.3, {2, 1}),  # f = 1, then 10 >= 9.3
        ({1, 3}, 0.5, {1, 3}),  # already there
        (set(), 0.96, {0, 1, 3, 4}),  # 30 >= 29.76
        (set(), 0.97, {0, 1, 2, 3, 4}),  # 30 < 30.07
        (set(), 1.0, {0, 1, 2, 3, 4, 5}),  # all, the one without score too
    ],
)
def test_mass_by_hand(S0, tau, S):
    assert experts(greedy_mass(U, mask(6, S0), tau)) == S


@given(st.integers(1, 10).flatmap(lambda N: st.tuples(st.lists(st.integers(0, 9), min_size=N, max_size=N), st.data())))
def test_optimal_among_sets_of_its_size(drawn):
    u, data = drawn
    N = len(u)
    S0 = data.draw(st.sets(st.integers(0, N - 1), max_size=N))
    budget = data.draw(st.integers(0, N))
    S = experts(greedy(torch.tensor(u), mask(N, S0), budget))
    assert S0 <= S
    assert len(S) == min(N, len(S0) + budget)
    rest = [j for j in range(N) if j not in S0]
    best = max(sum(u[j] for j in more) for more in combinations(rest, len(S) - len(S0)))
    assert sum(u[j] for j in S) == best + sum(u[j] for j in S0)


@given(st.lists(st.integers(-3, 3) | st.just(-torch.inf), min_size=1, max_size=12), st.integers(0, 14))
def test_rank_and_best_break_ties_by_index(values, count):
    order = sorted(range(len(values)), key=lambda j: (-values[j], j))
    places = rank(torch.tensor(values)).tolist()
    assert [places[j] for j in order] == list(range(len(values)))
    assert experts(best(torch.tensor(values), count)) == set(order[:count])


def test_fixed_point_is_exact_and_rounds_half_to_even():
    score = torch.tensor([[1.0, 0.5, 2**-32, 1.5 * 2**-32, 2.5 * 2**-32]], dtype=torch.float64)
    assert fixed_point(score, torch.tensor([True])).tolist() == [[2**32, 2**31, 1, 2, 2]]
    assert fixed_point(score, torch.tensor([False])).tolist() == [[0, 0, 0, 0, 0]]
