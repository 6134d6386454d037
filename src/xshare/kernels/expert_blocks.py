"""The fused routing for vLLM's modular experts: each row's k best experts inside S, best first, their weights, and rows
in blocks of one expert each.

The results equal, bit for bit, what vLLM computes from masked logits in three launches (fused_topk, and two of
moe_align_block_size), except that rows of an expert are in order of rows here and in any order there. For that, a row's
softmax takes CUDA's own exp, and sums in the order of vLLM's kernel: each of its lanes holds LOADED neighbouring
experts and adds them one after another, then lanes add up in pairs, half a row apart first.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from xshare.kernels.expert_sorting import bits_set, masked
from xshare.kernels.ranking import first_of

LOADED, WARP = tl.constexpr(8), tl.constexpr(32)  # 16-bit logits that a lane loads at once; lanes of a row, at most
TAKEN = tl.constexpr(-1)  # below the bits of every score


@triton.jit
def _exp(x, EXACT: tl.constexpr):
    if EXACT:
        return libdevice.exp(x)
    else:  # Triton's interpreter has no libdevice
        return tl.exp(x)


@triton.jit
def _plus(a, b, EXACT: tl.constexpr):
    """a + b, by itself: a compiler would join it with the product at the end of exp, and vLLM's does not."""
    if EXACT:
        return tl.inline_asm_elementwise(
            "add.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return a + b


@triton.jit
def _part(logits, column, S, top, LOWEST: tl.constexpr, EXACT: tl.constexpr):
    """exp of masked logits less the row's largest, read from memory at `logits` + `column`."""
    inside = tl.load(S + column) != 0
    x = masked(tl.load(logits + column), inside, LOWEST)
    return _exp(x.to(tl.float32) - top, EXACT)


@triton.jit
def _sum_by_lanes(
    logits, S, top, BR: tl.constexpr, N: tl.constexpr, LOWEST: tl.constexpr, EXACT: tl.constexpr
):  # fmt: skip
    """The sums of rows of such parts, in the order of vLLM's kernel -> [BR]. `logits`: where rows start, [BR, 1]"""
    LOADS: tl.constexpr = (N + LOADED * WARP - 1) // (LOADED * WARP)
    LANES: tl.constexpr = N // (LOADED * LOADS)
    lane = tl.arange(0, LANES)[None, :] * LOADED
    total = _part(logits, lane, S, top, LOWEST, EXACT)
    for place in tl.static_range(1, LOADED):
        total = _plus(total, _part(logits, lane + place, S, top, LOWEST, EXACT), EXACT)
    for load in tl.static_range(1, LOADS):
        for place in tl.static_range(LOADED):
            part = _part(logits, lane + load * LOADED * LANES + place, S, top, LOWEST, EXACT)
            total = _plus(total, part, EXACT)
    if LANES > 16:
        total = tl.sum(tl.reshape(total, [BR, 2, 16]), axis=1)
    if LANES > 8:
        total = tl.sum(tl.reshape(total, [BR, 2, 8]), axis=1)
    if LANES > 4:
        total = tl.sum(tl.reshape(total, [BR, 2, 4]), axis=1)
    if LANES > 2:
        total = tl.sum(tl.reshape(total, [BR, 2, 2]), axis=1)
    return tl.sum(total, axis=1)  # two values: nothing is left to order


@triton.jit
def scores_inside(
    x, S, logits, stride, rows, first_row, present, memory, row_sums,
    N: tl.constexpr, BN: tl.constexpr, LOWEST: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """A softmax over each row of masked logits, float32 [BR, BN]; 0 in rows whose sum is no number.

    `x` are the rows' logits, which are read again for the sums. Everything passes between the two layouts through
    memory: otherwise Triton would give the tile the layout of the sums. `memory`, int32 [BN], is this program's own.
    """
    BR: tl.constexpr = x.shape[0]
    cols = tl.arange(0, BN)
    tl.store(memory + cols, S.to(tl.int32))
    value = tl.where((cols < N)[None, :], masked(x, S[None, :], LOWEST).to(tl.float32), float("-inf"))
    top = tl.max(value, axis=1)
    tl.store(row_sums + rows, top)
    tl.debug_barrier()
    row = first_row + tl.arange(0, BR)
    line = logits + tl.minimum(row, present - 1)[:, None] * stride
    largest = tl.load(row_sums + row, cache_modifier=".cg")
    total = _sum_by_lanes(line, memory, largest[:, None], BR, N, LOWEST, EXACT)
    tl.debug_barrier()
    tl.store(row_sums + row, tl.div_rn(tl.full([BR], 1.0, tl.float32), total))
    tl.debug_barrier()
    factor = tl.load(row_sums + rows, cache_modifier=".cg")
    score = _exp(value - top[:, None], EXACT) * factor[:, None]
    return tl.where(score < float("inf"), score, 0.0)


@triton.jit
def write_best(score, S, rows, present, ids, keys, BN: tl.constexpr, K: tl.constexpr):
    """Write each row's K best experts in S, best first, ties by column, and the bits of their scores -> a mask of them.

    Where fewer than K scores are above 0, vLLM would take any expert, with weight 0. Here it is one of S.
    """
    cols, key = tl.arange(0, BN)[None, :], score.to(tl.int32, bitcast=True)  # in the order of scores: none is negative
    left = tl.where(S[None, :], key, TAKEN)
    place = rows[:, None] * K + cols * 0
    for slot in tl.static_range(K):
        hit = cols == first_of(left, tl.max(left, axis=1), BN)[:, None]
        left = tl.where(hit, TAKEN, left)
        place = tl.where(hit, place + slot, place)
    chosen = S[None, :] & (left == TAKEN) & (rows < present)[:, None]
    tl.store(keys + place, key, mask=chosen)
    tl.store(ids + place, cols + tl.zeros([score.shape[0], 1], tl.int32), mask=chosen)
    return chosen


@triton.jit
def write_weights(keys, first_row, present, weights, BR: tl.constexpr, K: tl.constexpr, SLOTS: tl.constexpr):
    """Write the rows' weights, which sum to 1; scores are summed best first. SLOTS: K rounded up to a power of two."""
    row, slots = first_row + tl.arange(0, BR)[:, None], tl.arange(0, SLOTS)[None, :]
    exists = (row < present) & (slots < K)
    line = keys + row * K + slots * 0
    total = tl.load(line, mask=exists, other=0).to(tl.float32, bitcast=True)
    for slot in tl.static_range(1, K):
        total += tl.load(line + slot, mask=exists, other=0).to(tl.float32, bitcast=True)
    score = tl.load(line + slots, mask=exists, other=0).to(tl.float32, bitcast=True)
    one = tl.full([BR, SLOTS], 1.0, tl.float32)
    tl.store(weights + row * K + slots, score * tl.div_rn(one, tl.where(total > 0, total, 1.0)), mask=exists)


@triton.jit
def write_blocks(count, shift, pairs, tiles, end, missing, part, PARTS: tl.constexpr, BN: tl.constexpr):
    """From the rows per expert, int32 [BN], write each block's expert, and `missing` where a block has no row -> where
    each expert's rows start.

    A block has 1 << shift rows. `end`: memory for the number of rows, all blocks full. PARTS programs may share the
    work; this is number `part`.
    """
    cols = tl.arange(0, BN)
    blocks = (count + (1 << shift) - 1) >> shift
    begin = tl.cumsum(blocks, axis=0) - blocks
    first, size = begin << shift, blocks << shift
    if part == 0:
        tl.store(end, tl.sum(size, axis=0))
    for block in range(part, tl.max(blocks, axis=0), PARTS):
        tl.store(tiles + begin + block, cols, mask=block < blocks)
    for place in range(part, (1 << shift) - 1, PARTS):
        tl.store(pairs + first + count + place, missing + cols * 0, mask=count + place < size)
    return first


@triton.jit
def write_members(
    ids, first_row, present, places, pairs, BR: tl.constexpr, BN: tl.constexpr, K: tl.constexpr, SLOTS: tl.constexpr
):
    """Write each pair of row and slot at its position in the blocks. `places`: as in write_pairs."""
    row, slots = first_row + tl.arange(0, BR)[:, None], tl.arange(0, SLOTS)[None, :]
    pair, exists = row * K + slots, (row < present) & (slots < K)
    column = tl.load(ids + pair, mask=exists, other=0)
    below = (1 << (row - first_row)) - 1
    at = tl.load(places + column, mask=exists, other=0)
    at += bits_set(tl.load(places + BN + column, mask=exists, other=0) & below)
    tl.store(pairs + at, pair, mask=exists)
