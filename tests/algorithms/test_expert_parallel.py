"""Algorithms 5 and 6: both fills by hand, their bounds, and `level` optimal by brute force."""

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from xshare.algorithms import fill_level, fill_rounds, load

U = torch.tensor([9, 8, 7, 6, 5, 4, 3, 2])
TWO = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
UNEVEN = torch.tensor([0, 0, 0, 0, 0, 0, 1, 2])


def mask(experts, N=8):
    return torch.tensor([j in experts for j in range(N)])


def experts(mask):
    return set(mask.nonzero().flatten().tolist())


@pytest.mark.parametrize(
    ("fill", "devices", "G", "S0", "m_g", "S"),
    [
        (fill_rounds, TWO, 2, set(), 1, {0, 4}),
        (fill_rounds, TWO, 2, set(), 2, {0, 1, 4, 5}),
        (fill_rounds, TWO, 2, {7}, 2, {7, 0, 4, 1, 5}),  # 1, 3, then 5 >= 4: a round is finished once begun
        (fill_rounds, TWO, 2, {0, 1, 2}, 2, {0, 1, 2, 3, 4}),  # 3 < 4: one round, and device 0 grows to 4
        (fill_level, TWO, 2, {0, 1, 2}, 2, {0, 1, 2, 4, 5}),  # device 0 is full already, device 1 gets its two
        (fill_level, TWO, 2, set(), 0, set()),
        (fill_level, TWO, 2, {7}, 0, {7}),
        (fill_level, TWO, 2, set(), 9, set(range(8))),
        (fill_level, UNEVEN, 3, set(), 2, {0, 1, 6, 7}),  # devices 1 and 2 have one expert each
        (fill_rounds, UNEVEN, 3, set(), 2, {0, 6, 7, 1, 2, 3}),  # 3, 4, 5, 6 >= 6: only device 0 can still add
        (fill_rounds, UNEVEN, 3, set(), 9, set(range(8))),  # stops when no device can add
        (fill_level, TWO, 2, set(), 2**70, set(range(8))),
        (fill_rounds, TWO, 2, set(), 2**62, set(range(8))),
        (fill_level, TWO, 3, set(), 1, {0, 4}),  # the third device holds nothing
        (fill_rounds, TWO, 3, set(), 1, {0, 4, 1, 5}),  # 2 < 3, so another round
    ],
)
def test_fills_agree_with_sets_found_by_hand(fill, devices, G, S0, m_g, S):
    assert experts(fill(U, mask(S0), devices, G, m_g)) == S


def test_ties_go_to_the_lower_expert_of_the_device():
    assert experts(fill_level(torch.ones(8, dtype=torch.int64), mask(set()), TWO, 2, 1)) == {0, 4}


cases = st.integers(1, 9).flatmap(
    lambda N: st.tuples(
        st.lists(st.integers(0, 6), min_size=N, max_size=N),
        st.lists(st.integers(0, 2), min_size=N, max_size=N),
        st.sets(st.integers(0, N - 1)),
        st.integers(0, 4),
    )
)


@given(cases)
def test_bounds_on_the_fullest_device(case):
    u, devices, S0, m_g = (torch.tensor(case[0]), torch.tensor(case[1]), mask(case[2], len(case[0])), case[3])
    level, rounds = fill_level(u, S0, devices, 3, m_g), fill_rounds(u, S0, devices, 3, m_g)
    before, by_level, by_rounds = (int(load(S, devices, 3).max()) for S in (S0, level, rounds))
    assert experts(S0) <= experts(level)
    assert experts(S0) <= experts(rounds)
    assert by_level <= max(m_g, before)
    assert by_level <= by_rounds
    number_of_rounds = int((load(rounds, devices, 3) - load(S0, devices, 3)).max())
    assert by_rounds <= before + number_of_rounds
    if not experts(S0):  # the paper's bound: after any number of rounds no device leads by more than one
        assert by_rounds == number_of_rounds


@given(cases)
def test_level_is_optimal_for_its_load(case):
    u, devices, S0, m_g = case
    N = len(u)
    S = experts(fill_level(torch.tensor(u), mask(S0, N), torch.tensor(devices), 3, m_g))
    room = [max(m_g, sum(devices[j] == d for j in S0)) for d in range(3)]
    feasible = (
        S0 | set(more)
        for size in range(N + 1)
        for more in combinations(sorted(set(range(N)) - S0), size)
        if all(sum(devices[j] == d for j in S0 | set(more)) <= room[d] for d in range(3))
    )
    assert sum(u[j] for j in S) == max(sum(u[j] for j in T) for T in feasible)
