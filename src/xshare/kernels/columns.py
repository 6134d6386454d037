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
def choose(
    u, count, m, m_g, tau, devices, num_devices, N: tl.constexpr, BN: tl.constexpr, TOP_K: tl.constexpr,
    DEVICES: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    """Column sums and counts -> S, bool [BN], topped up to TOP_K."""
    cols = tl.arange(0, BN)
    inside = cols < N
    S0 = (count & (VOTER - 1)) > 0
    candidate = inside & (S0 == 0)
    size = 0
    if (m < TOP_K) | (m_g >= 0) | (tau >= 0):  # a block-wide sum that a budget of k or more does not need
        size = tl.sum(S0.to(tl.int32), axis=0)
    place = places(unique_keys(u, candidate, cols))
    S = S0
    if DEVICES and m_g >= 0:
        device = tl.load(devices + cols, mask=inside, other=-1)
        together = device[:, None] == device[None, :]
        earlier = (place[:, None] < place[None, :]) & candidate[:, None]
        turn = tl.sum((earlier & together).to(tl.int32), axis=0)  # place among the experts of the same device
        if ROUNDS:
            fits = size + before(turn, candidate.to(tl.int32)) < tl.minimum(m_g, N) * num_devices
        else:
            held = tl.sum((together & S0[:, None]).to(tl.int32), axis=0)
            fits = turn < m_g - held
        S = S0 | (inside & fits)
        short = TOP_K - tl.sum(S.to(tl.int32), axis=0)
        S = S | (inside & (before(place, (candidate & (S == 0)).to(tl.int32)) < short))
    elif tau >= 0:
        sums = u.to(tl.float64)
        reached = tl.sum(tl.where(S0, sums, 0.0), axis=0) + before(place, tl.where(candidate, sums, 0.0))  # at its turn
        target = tau * tl.sum(sums, axis=0)
        if tau >= 1:
            target = target + 1e300  # all, those without score too
        S = S0 | (inside & ((reached < target) | (place < TOP_K - size)))
    else:
        S = S0 | (inside & (place < tl.maximum(m, TOP_K - size)))
    if TOP_K > 0:  # routing is native where nobody votes; select() alone takes what the algorithm gives
        S = S | (count < VOTER)
    return inside & S
