"""The fused selection, column by column: votes -> S, one expert a thread.

Column sums and keys (a sum, then the lower index) stay below 2^50 and are exact in float64.
"""

import triton
import triton.language as tl

from xshare.kernels.rows import VOTER, join, unique_keys


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
def add_up(halves, counts, TILE: tl.constexpr, BN: tl.constexpr):
    """-> column sums u float64 [BN] and counts int32 [BN] of the TILE rows in scratch"""
    cols = tl.arange(0, BN)
    high, low, count = tl.zeros([BN], tl.float32), tl.zeros([BN], tl.float32), tl.zeros([BN], tl.int32)
    for row in tl.static_range(TILE):
        high += tl.load(halves + row * BN + cols, cache_modifier=".cg")
        low += tl.load(halves + (TILE + row) * BN + cols, cache_modifier=".cg")
        count += tl.load(counts + row * BN + cols, cache_modifier=".cg")
    return join(high, low), count


@triton.jit
def places(key, keys, BN: tl.constexpr):
    """How many keys are larger than each. A few at a time: all N x N at once would not fit the registers."""
    CHUNK: tl.constexpr = 32 if BN >= 32 else BN
    tl.store(keys + tl.arange(0, BN), key)
    tl.debug_barrier()
    place = tl.zeros([BN], tl.int32)
    for i in range(0, BN, CHUNK):
        other = tl.load(keys + i + tl.arange(0, CHUNK))
        place += tl.sum((other[:, None] > key[None, :]).to(tl.int32), axis=0)
    return place


@triton.jit
def choose(
    u, count, keys, m, m_g, tau, devices, num_devices, N: tl.constexpr, BN: tl.constexpr, TOP_K: tl.constexpr,
    DEVICES: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    """Column sums and counts -> S, bool [BN], topped up to TOP_K."""
    cols = tl.arange(0, BN)
    inside = cols < N
    S0 = (count & (VOTER - 1)) > 0
    size = 0
    if (m < TOP_K) | (m_g >= 0) | (tau >= 0):  # a block-wide sum that a budget of k or more does not need
        size = tl.sum(S0.to(tl.int32), axis=0)
    key = unique_keys(u, inside & (S0 == 0), cols)
    place = places(key, keys, BN)
    S = S0
    if DEVICES and m_g >= 0:
        device = tl.load(devices + cols, mask=inside, other=-1)
        together = device[:, None] == device[None, :]
        turn = tl.sum(
            ((key[:, None] > key[None, :]) & together).to(tl.int32), axis=0
        )  # place among the experts of the same device
        if ROUNDS:
            earlier = (turn[:, None] < turn[None, :]) & (inside & (S0 == 0))[:, None]
            fits = size + tl.sum(earlier.to(tl.int32), axis=0) < tl.minimum(m_g, N) * num_devices
        else:
            held = tl.sum((together & S0[:, None]).to(tl.int32), axis=0)
            fits = turn < m_g - held
        S = S0 | (inside & fits)
        key = unique_keys(u, inside & (S == 0), cols)
        short = TOP_K - tl.sum(S.to(tl.int32), axis=0)
        S = S | (inside & (tl.sum((key[:, None] > key[None, :]).to(tl.int32), axis=0) < short))
    elif tau >= 0:
        before = tl.zeros([BN], tl.float64) + tl.sum(tl.where(S0, u, 0.0), axis=0)  # f(S) when an expert's turn comes
        for i in range(0, N):
            other = tl.load(keys + i)
            before += tl.where(other > key, tl.floor(other * 0.001953125), 0.0)  # / 512: the sum without the index
        target = tau * tl.sum(u, axis=0)
        if tau >= 1:
            target = target + 1e300  # all, those without score too
        S = S0 | (inside & ((before < target) | (place < TOP_K - size)))
    else:
        S = S0 | (inside & (place < tl.maximum(m, TOP_K - size)))
    if TOP_K > 0:  # routing is native where nobody votes; select() alone takes what the algorithm gives
        S = S | (count < VOTER)
    return inside & S
