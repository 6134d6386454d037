"""The fused selection, column by column: votes -> S, one expert a thread.

Column sums are integers below 2^41; keys (a sum, then the lower index) are 64-bit integers.
"""

import triton
import triton.language as tl

from xshare.kernels.rows import VOTER, unique_keys


@triton.jit
def leave_votes(high, low, count, halves, counts, first, TILE: tl.constexpr, BQ: tl.constexpr, BN: tl.constexpr):
    """Votes [BQ, BN] in scratch, from row `first` of a tile of TILE rows, for `add_up` to add up column by column.

    By way of memory: summing across warps inside the kernel costs several times that in bank conflicts.
    """
    place = (first + tl.arange(0, BQ))[:, None] * BN + tl.arange(0, BN)[None, :]
    tl.store(halves + place, high)
    tl.store(halves + TILE * BN + place, low)
    tl.store(counts + place, count)


@triton.jit
def add_up(halves, counts, TILE: tl.constexpr, BN: tl.constexpr, NEAR: tl.constexpr):
    """-> column sums u int64 [BN] and counts int32 [BN] of the TILE rows in scratch

    NEAR: this program wrote all of them, and may find them in its own multiprocessor's cache.
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
    """How many keys are larger than each. As integers: a float64 compare takes 22 cycles, and N x N of them most of a
    launch. Differences below zero are counted: adding a comparison up compiles to a chain of two instructions, one
    waiting for the other, adding up a sign to half of one."""
    return -tl.sum(((key[None, :] - key[:, None]) >> 63).to(tl.int32), axis=0)


@triton.jit
def before(place, what):
    """Sums of `what` over the experts whose place comes before each."""
    return tl.sum(tl.where(place[:, None] < place[None, :], what[:, None], tl.zeros_like(what)[:, None]), axis=0)


@triton.jit
def _sizes(cost, BN: tl.constexpr, N: tl.constexpr):
    """What 1 to N experts cost, float64 [BN], infinite beyond."""
    cols = tl.arange(0, BN)
    return tl.load(cost + 1 + cols, mask=cols < N, other=float("inf"))


@triton.jit
def _rounded(x):
    """A float64 to the nearest integer, ties to even; above 2^51 it is one, or near enough."""
    return tl.where(x < 2251799813685248.0, (x + 6755399441055744.0) - 6755399441055744.0, x)


@triton.jit
def _worth_by_cost(u, place, candidate, size, lam, cost, order, N: tl.constexpr, BN: tl.constexpr):
    """How many experts beside S0, which has `size`, make the votes less lam * c[|S|] largest; of equals the fewest."""
    cols = tl.arange(0, BN)
    others = N - size
    tl.store(order + place, u, mask=candidate)  # through memory: a sort inside the kernel costs several times that
    tl.debug_barrier()
    gain = tl.cumsum(tl.load(order + cols, mask=cols < others, other=0), axis=0)  # of 1, 2, ... experts
    price = lam * 4294967296.0
    pays = _rounded(price * tl.load(cost + size + 1 + cols, mask=cols < others, other=0.0)).to(tl.int64)
    value = tl.where(cols < others, gain - pays, -9223372036854775807)
    none = -_rounded(price * tl.load(cost + size)).to(tl.int64)
    best = tl.max(value, axis=0)
    return tl.where(best > none, tl.min(tl.where(value == best, cols, BN), axis=0) + 1, 0)


@triton.jit
def choose(
    u, count, m, m_g, rounds, tau, lam, table, cost, order, devices, num_devices,
    N: tl.constexpr, BN: tl.constexpr, TOP_K: tl.constexpr, DEVICES: tl.constexpr, COST: tl.constexpr,
):  # fmt: skip
    """Column sums and counts -> S, bool [BN], topped up to TOP_K. Experts are ranked only where their order counts."""
    cols = tl.arange(0, BN)
    inside = cols < N
    S0 = (count & (VOTER - 1)) > 0
    if (lam > 0) & (table < 0):
        S0 = S0 | (inside & (u.to(tl.float64) >= lam * 4294967296.0))
    candidate = inside & (S0 == 0)
    size = TOP_K
    if (m < TOP_K) | (m_g >= 0) | (tau >= 0) | (table >= 0):  # a block-wide sum that a budget of k or more does not need
        size = tl.sum(S0.to(tl.int32), axis=0)
    S = S0
    if (m > 0) | (m_g >= 0) | (tau >= 0) | (table >= 0) | (size < TOP_K):
        place = places(unique_keys(u, candidate, cols))
        added = tl.maximum(m, TOP_K - size)
        if DEVICES and m_g >= 0:
            device = tl.load(devices + cols, mask=inside, other=-1)
            together = device[:, None] == device[None, :]
            earlier = (place[:, None] < place[None, :]) & candidate[:, None]
            turn = tl.sum((earlier & together).to(tl.int32), axis=0)  # place among the experts of the same device
            if rounds != 0:
                fits = size + before(turn, candidate.to(tl.int32)) < tl.minimum(m_g, N) * num_devices
            else:
                held = tl.sum((together & S0[:, None]).to(tl.int32), axis=0)
                fits = turn < m_g - held
            S = S0 | (inside & fits)
            short = TOP_K - tl.sum(S.to(tl.int32), axis=0)
            S = S | (inside & (before(place, (candidate & (S == 0)).to(tl.int32)) < short))
        elif tau >= 0:
            sums = u.to(tl.float64)
            reached = tl.sum(tl.where(S0, sums, 0.0), axis=0) + before(place, tl.where(candidate, sums, 0.0))
            target = tau * tl.sum(sums, axis=0)
            if tau >= 1:
                target = target + 1e300  # all, those without votes too
            S = S0 | (inside & (reached < target))  # of what is reached at an expert's turn
            if COST and table >= 0:
                S = _snapped(S, S0, u, place, size, cost, N, BN)
            S = S | (inside & (place < TOP_K - size))
        else:
            if COST and table >= 0:
                if lam > 0:
                    added = _worth_by_cost(u, place, candidate, size, lam, cost, order, N, BN)
                    S = S0 | (inside & (place < tl.maximum(added, TOP_K - size)))
                else:
                    S = _snapped(S0 | (inside & (place < m)), S0, u, place, size, cost, N, BN)
                    S = S | (inside & (place < TOP_K - size))
            else:
                S = S0 | (inside & (place < added))
    if TOP_K > 0:  # routing is native where nobody votes; select() alone takes what the algorithm gives
        S = S | (count < VOTER)
    return inside & S


@triton.jit
def _snapped(S, S0, u, place, size, cost, N: tl.constexpr, BN: tl.constexpr):
    """S with the next experts that have votes, as far as the stair reaches that its size stands on. S0 has `size`."""
    paid = tl.load(cost + tl.sum(S.to(tl.int32), axis=0))
    edge = tl.sum((_sizes(cost, BN, N) <= paid + 0.25).to(tl.int32), axis=0)
    return S | ((S0 == 0) & (place < edge - size) & (u > 0))
