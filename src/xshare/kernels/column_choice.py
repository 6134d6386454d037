"""The fused selection, column by column: votes -> S, one expert per thread.

Column sums are integers below 2^41. Keys are 64-bit integers: the sum, then the index, lower indices first.
"""

import triton
import triton.language as tl

from xshare.kernels.row_votes import VOTER, unique_keys


@triton.jit
def leave_votes(high, low, count, halves, counts, first, TILE: tl.constexpr, BQ: tl.constexpr, BN: tl.constexpr):
    """Write votes [BQ, BN] to scratch, from row `first` of a tile of TILE rows; `add_up` then sums them by column.

    Votes go through memory because summing across warps inside the kernel costs several times that in bank conflicts.
    """
    place = (first + tl.arange(0, BQ))[:, None] * BN + tl.arange(0, BN)[None, :]
    tl.store(halves + place, high)
    tl.store(halves + TILE * BN + place, low)
    tl.store(counts + place, count)


@triton.jit
def add_up(halves, counts, TILE: tl.constexpr, BN: tl.constexpr, NEAR: tl.constexpr):
    """-> column sums u int64 [BN] and counts int32 [BN] of the TILE rows in scratch

    NEAR: this program wrote all of them, so its own multiprocessor's cache may serve the reads.
    """
    cols = tl.arange(0, BN)
    WHERE: tl.constexpr = "" if NEAR else ".cg"
    high, low, count = tl.zeros([BN], tl.float32), tl.zeros([BN], tl.float32), tl.zeros([BN], tl.int32)
    for row in tl.static_range(TILE):
        high += tl.load(halves + row * BN + cols, cache_modifier=WHERE)
        low += tl.load(halves + (TILE + row) * BN + cols, cache_modifier=WHERE)
        count += tl.load(counts + row * BN + cols, cache_modifier=WHERE)
    return high.to(tl.int32).to(tl.int64) * 65536 + low.to(tl.int32), count


@triton.jit
def places(key):
    """For each key, the number of larger keys.

    Keys are integers because a float64 compare takes 22 cycles, and N x N of them would be most of a launch. Signs of
    differences are summed because summing comparisons compiles to a chain of two dependent instructions, summing signs
    to half an instruction.
    """
    return -tl.sum(((key[None, :] - key[:, None]) >> 63).to(tl.int32), axis=0)


@triton.jit
def sum_before(place, values):
    """For each expert, the sum of `values` over the experts with a lower place."""
    return tl.sum(tl.where(place[:, None] < place[None, :], values[:, None], tl.zeros_like(values)[:, None]), axis=0)


@triton.jit
def _in_order(u, place, candidate, size, order, N: tl.constexpr, BN: tl.constexpr):
    """The candidates' sums in greedy order, int64 [BN], zero after the last. They go through memory because a sort
    inside the kernel costs several times that. `size` is |S0|."""
    cols = tl.arange(0, BN)
    tl.store(order + place, u, mask=candidate)
    tl.debug_barrier()
    return tl.load(order + cols, mask=cols < N - size, other=0)


@triton.jit
def _added_for_mass(u, S0, gain, size, tau, N: tl.constexpr, BN: tl.constexpr):
    """How many experts are added to S0 while f(S) < tau * f(E). `gain`: see _in_order."""
    cols = tl.arange(0, BN)
    f_before = tl.sum(tl.where(S0, u, 0), axis=0) + tl.cumsum(gain, axis=0) - gain  # f(S) before each is added
    target = tau * tl.sum(u, axis=0).to(tl.float64)
    if tau >= 1:
        target = target + 1e300  # all experts, with those without votes
    return tl.sum(((cols < N - size) & (f_before.to(tl.float64) < target)).to(tl.int32), axis=0)


@triton.jit
def _rounded(x):
    """A float64 rounded to an integer, ties to even; values above 2^51 stay as they are, integers or near enough."""
    return tl.where(x < 2251799813685248.0, (x + 6755399441055744.0) - 6755399441055744.0, x)


@triton.jit
def _added_by_cost(gain, size, lam, cost, N: tl.constexpr, BN: tl.constexpr):
    """How many experts added to S0 maximise (votes of S) - lam * c[|S|]; ties go to fewer. `size` is |S0|."""
    cols = tl.arange(0, BN)
    exists = cols < N - size
    price = lam * 4294967296.0
    charge = _rounded(price * tl.load(cost + size + 1 + cols, mask=exists, other=0.0)).to(tl.int64)
    value = tl.where(exists, tl.cumsum(gain, axis=0) - charge, -9223372036854775807)
    value_of_none = -_rounded(price * tl.load(cost + size)).to(tl.int64)
    best = tl.max(value, axis=0)
    return tl.where(best > value_of_none, tl.min(tl.where(value == best, cols, BN), axis=0) + 1, 0)


@triton.jit
def _added_to_edge(u, candidate, size, added, cost, N: tl.constexpr, BN: tl.constexpr):
    """How many experts are added to S0 if a set of `size` + `added` experts is filled to the end of its stair, as long
    as the experts have votes."""
    cols = tl.arange(0, BN)
    paid = tl.load(cost + size + added)
    affordable = tl.load(cost + 1 + cols, mask=cols < N, other=float("inf")) <= paid + 0.25
    voted = tl.sum((candidate & (u > 0)).to(tl.int32), axis=0)
    return tl.maximum(added, tl.minimum(tl.sum(affordable.to(tl.int32), axis=0) - size, voted))


@triton.jit
def choose(
    u, count, m, m_g, rounds, tau, lam, table, cost, order, devices, num_devices,
    N: tl.constexpr, BN: tl.constexpr, TOP_K: tl.constexpr, DEVICES: tl.constexpr, COST: tl.constexpr,
):  # fmt: skip
    """Column sums and counts -> S, bool [BN], topped up to TOP_K.

    Experts are ranked only if their order matters. Without device budgets, the branches then only decide how many of
    the ranking are added: branches that return whole vectors made the ranking twice as slow.
    """
    cols = tl.arange(0, BN)
    inside = cols < N
    S0 = (count & (VOTER - 1)) > 0
    if (lam > 0) & (table < 0):
        S0 = S0 | (inside & (u.to(tl.float64) >= lam * 4294967296.0))
    candidate = inside & (S0 == 0)
    size = TOP_K
    if (
        (m < TOP_K) | (m_g >= 0) | (tau >= 0) | (table >= 0)
    ):  # a block-wide sum that a budget of k or more does not need
        size = tl.sum(S0.to(tl.int32), axis=0)
    S = S0
    if (m > 0) | (m_g >= 0) | (tau >= 0) | (table >= 0) | (size < TOP_K):
        place = places(unique_keys(u, candidate, cols))
        added = m
        if tau >= 0:
            added = _added_for_mass(u, S0, _in_order(u, place, candidate, size, order, N, BN), size, tau, N, BN)
        if COST:
            if table >= 0:
                if lam > 0:
                    gain = _in_order(u, place, candidate, size, order, N, BN)
                    added = _added_by_cost(gain, size, lam, cost, N, BN)
                else:
                    added = tl.minimum(added, N - size)
                    added = _added_to_edge(u, candidate, size, added, cost, N, BN)
        S = S0 | (inside & (place < tl.maximum(added, TOP_K - size)))
        if DEVICES:
            if m_g >= 0:
                S = _on_devices(S0, candidate, place, size, m_g, rounds, devices, num_devices, N, BN, TOP_K)
    if TOP_K > 0:  # routing is native if no row votes; select(), with TOP_K = 0, returns the algorithm's set
        S = S | (count < VOTER)
    return inside & S


@triton.jit
def _on_devices(
    S0, candidate, place, size, m_g, rounds, devices, num_devices,
    N: tl.constexpr, BN: tl.constexpr, TOP_K: tl.constexpr,
):  # fmt: skip
    """S with a budget per device, in rounds or level, topped up to TOP_K."""
    cols = tl.arange(0, BN)
    inside = cols < N
    device = tl.load(devices + cols, mask=inside, other=-1)
    same_device = device[:, None] == device[None, :]
    earlier = (place[:, None] < place[None, :]) & candidate[:, None]
    turn = tl.sum((earlier & same_device).to(tl.int32), axis=0)  # place among the experts of the same device
    if rounds != 0:
        fits = size + sum_before(turn, candidate.to(tl.int32)) < tl.minimum(m_g, N) * num_devices
    else:
        held = tl.sum((same_device & S0[:, None]).to(tl.int32), axis=0)
        fits = turn < m_g - held
    S = S0 | (inside & fits)
    short = TOP_K - tl.sum(S.to(tl.int32), axis=0)
    return S | (inside & (sum_before(place, (candidate & (S == 0)).to(tl.int32)) < short))
