"""The fused routing: each row's top-k inside S, its weights, and rows sorted by expert for the experts' kernel.

The results equal, bit for bit, what vLLM's Triton path computes from masked logits in four launches: ids in the order
of the logits' bits, a softmax over a row's k experts with vLLM's order of summation, and the tables of `Tables`.
"""

import triton
import triton.language as tl

from xshare.kernels.ranking import REMOVED

SMALLEST = 16  # rows in the smallest tile of the experts' kernel; the others have 32, 64 and 128
SIZES = 4


@triton.jit
def masked(x, S, LOWEST: tl.constexpr):
    """Logits with the lowest finite value outside S. Inside S, -inf becomes half of that value, so that it ranks above
    every expert outside. Any other logit is unchanged, so S = E changes no bit of a finite row."""
    lowest = tl.full(x.shape, LOWEST, tl.float32).to(x.dtype)
    above = tl.full(x.shape, LOWEST / 2, tl.float32).to(x.dtype)
    return tl.where(S, tl.where(x == float("-inf"), above, x), lowest)


@triton.jit
def _as_bits(x, BN: tl.constexpr):
    """16-bit floats [BR, BN] -> unique int32 in the order of their bits: -0 is below 0, and NaN is ordered too. Among
    equal floats, the lower column gets the larger key."""
    bits = x.to(tl.int16, bitcast=True).to(tl.int32)
    return ((bits ^ ((bits >> 31) & 0x7FFF)) << 16) | (65535 - tl.arange(0, BN))[None, :]


@triton.jit
def _value(key, memory):
    bits = key >> 16
    return (bits ^ ((bits >> 31) & 0x7FFF)).to(tl.int16).to(memory.dtype.element_ty, bitcast=True).to(tl.float32)


@triton.jit
def _column(key):
    return 65535 - (key & 65535)


@triton.jit
def top_inside(x, S, N: tl.constexpr, BN: tl.constexpr, K: tl.constexpr, LOWEST: tl.constexpr):
    """-> keys of the masked logits, int32 [BR, BN], and a mask of each row's K best inside S"""
    key = tl.where((tl.arange(0, BN) < N)[None, :], _as_bits(masked(x, S[None, :], LOWEST), BN), REMOVED)
    most = tl.max(key, axis=1)
    left = key
    for _ in tl.static_range(1, K):
        left = tl.where(left < most[:, None], left, REMOVED)
        most = tl.max(left, axis=1)
    return key, key >= most[:, None]


@triton.jit
def bits_set(x):
    """The number of set bits of an int32."""
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24) & 0xFF


@triton.jit
def leave_rows(key, chosen, keys, marks, rows, BQ: tl.constexpr, BN: tl.constexpr, K: tl.constexpr):
    """Write what rows have chosen to memory, as votes are: per row its K keys in column order, and columns' marks."""
    slot = tl.cumsum(chosen.to(tl.int32), axis=1) - 1
    tl.store(keys + rows[:, None] * K + slot, key, mask=chosen)
    leave_marks(chosen, marks, BQ, BN)


@triton.jit
def leave_marks(chosen, marks, BQ: tl.constexpr, BN: tl.constexpr):
    """Write per column a mark whose bit r says whether the program's row r is routed there."""
    BR: tl.constexpr = chosen.shape[0]
    bits = tl.where(chosen, 1 << tl.arange(0, BR)[:, None], 0)
    if BR > BQ:
        bits = tl.sum(tl.reshape(bits, [BR // BQ, BQ, BN]), axis=0)
    HELD: tl.constexpr = BQ if BR > BQ else BR
    tl.store(marks + tl.arange(0, HELD)[:, None] * BN + tl.arange(0, BN)[None, :], bits)


@triton.jit
def marks_of(marks, BR: tl.constexpr, BQ: tl.constexpr, BN: tl.constexpr):
    """-> the columns' marks, int32 [BN]"""
    HELD: tl.constexpr = BQ if BR > BQ else BR
    mark = tl.zeros([BN], tl.int32)
    for row in tl.static_range(HELD):
        mark += tl.load(marks + row * BN + tl.arange(0, BN))
    return mark


@triton.jit
def write_tables(
    count, hist, starts, starts_stride, tiles, tiles_stride, most_tiles, part, PARTS: tl.constexpr,
    N: tl.constexpr, BN: tl.constexpr, ROWS: tl.constexpr, MOST_TILES: tl.constexpr,
):  # fmt: skip
    """Write hist, starts and tiles (see Tables) from the rows per expert, int32 [BN] -> where each expert's rows start.

    PARTS programs may share the work; this is number `part`. One 64-bit cumulative sum computes five: rows in the
    lowest 16 bits, then tiles of each size in 12 bits each.
    """
    cols = tl.arange(0, BN)
    packed = count.to(tl.int64)
    for size in tl.static_range(4):
        packed += ((count + ((16 << size) - 1)) >> (4 + size)).to(tl.int64) << (16 + 12 * size)
    ends = tl.cumsum(packed, axis=0)
    begins = ends - packed
    first = (begins & 65535).to(tl.int32)
    last = cols == N - 1
    totals = tl.sum(packed, axis=0)
    if part == 0:
        tl.store(hist + cols, count, mask=cols < N)
        tl.store(starts + cols, first, mask=cols < N)
        tl.store(starts + 1 + cols, (ends & 65535).to(tl.int32), mask=last)
    for size in tl.static_range(4):
        if part == size % PARTS:
            begin = ((begins >> (16 + 12 * size)) & 4095).to(tl.int32)
            end = ((ends >> (16 + 12 * size)) & 4095).to(tl.int32)
            line = starts + (1 + size) * starts_stride
            tl.store(line + cols, begin, mask=cols < N)
            tl.store(line + 1 + cols, end, mask=last)
            entries = tiles + size * tiles_stride
            for tile in tl.static_range((ROWS + (16 << size) - 1) // (16 << size)):
                tl.store(entries + begin + tile, tile * 65536 + cols, mask=(begin + tile < end) & (cols < N))
            used = ((totals >> (16 + 12 * size)) & 4095).to(tl.int32)
            for chunk in tl.static_range((MOST_TILES + BN - 1) // BN):
                place = chunk * BN + cols
                tl.store(entries + place, tl.full([BN], -1, tl.int32), mask=(place >= used) & (place < most_tiles))
    return first


@triton.jit
def weigh(keys, first_row, present, weights, BR: tl.constexpr, K: tl.constexpr):
    """The pairs of the program's rows: their numbers, whether they exist, columns and weights, each [BR * K].

    The weights are a softmax over a row's K experts, summed one after another in column order.
    """
    pair = first_row * K + tl.arange(0, BR * K)
    exists = pair < present * K
    row = keys + pair // K * K
    top = _value(tl.load(row, mask=exists, other=0), weights)
    for slot in tl.static_range(1, K):
        top = tl.maximum(top, _value(tl.load(row + slot, mask=exists, other=0), weights))
    total = tl.exp(_value(tl.load(row, mask=exists, other=0), weights) - top)
    for slot in tl.static_range(1, K):
        total += tl.exp(_value(tl.load(row + slot, mask=exists, other=0), weights) - top)
    key = tl.load(keys + pair, mask=exists, other=0)
    return pair, exists, _column(key), tl.exp(_value(key, weights) - top) / total


@triton.jit
def write_pairs(
    pair, exists, column, weight, first_row, places, gathers, scatters, weights, BN: tl.constexpr, K: tl.constexpr
):
    """Write each pair's position among the rows sorted by expert, the pair at each position, and its weight.

    `places` is memory, by column: the position of the expert's first row in this program, and the expert's mark.
    """
    below = (1 << (pair // K - first_row)) - 1
    at = tl.load(places + column, mask=exists, other=0)
    at += bits_set(tl.load(places + BN + column, mask=exists, other=0) & below)
    tl.store(scatters + pair, at, mask=exists)
    tl.store(gathers + at, pair, mask=exists)
    tl.store(weights + at, weight.to(weights.dtype.element_ty), mask=exists)
