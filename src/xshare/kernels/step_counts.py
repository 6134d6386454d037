"""What a sampled step loaded, and would have loaded natively: one launch for all layers, from the saved logits."""

import triton
import triton.language as tl

from xshare.kernels.ranking import best_of
from xshare.kernels.refinement import inside_set
from xshare.kernels.row_votes import LOWEST_FLOAT, SIGMOID, SOFTMAX, read_rows


@triton.jit(do_not_specialize=["rows"])
def count_step(
    seen, layer_stride, rows, keep_ptr, bias_ptr, devices_ptr, num_devices, sums, layers,
    N: tl.constexpr, BN: tl.constexpr, K: tl.constexpr, SCORING: tl.constexpr, RENORMALIZE: tl.constexpr,
    GROUPS: tl.constexpr, KEEP_GROUPS: tl.constexpr,
):  # fmt: skip
    """One program per layer. Adds to sums, float64 [7, layers]: native, selected and active experts; the mass kept; the
    share of rows that keep less than half of their native weight; the smallest share that a row keeps; max load."""
    layer = tl.program_id(0)
    cols = tl.arange(0, BN)[None, :]
    inside = cols < N
    keep = tl.load(keep_ptr + layer * N + cols, mask=inside, other=0) != 0
    bias = tl.load(bias_ptr + layer * N + tl.arange(0, BN), mask=tl.arange(0, BN) < N, other=0.0)
    native, active = cols < 0, cols < 0
    kept_weight, all_weight, below, voted, least = 0.0, 0.0, 0, 0, 1.0
    row = 0
    while row < rows:
        x = tl.load(seen + layer * layer_stride + row * N + cols, mask=inside, other=float("-inf"))
        score, key, _, usable, _, total = read_rows(x, bias, N, 1, BN, SCORING, GROUPS, KEEP_GROUPS)
        if SCORING == SOFTMAX:
            score = tl.where(usable[:, None], score * (1.0 / total)[:, None], 0.0)
        row_native = best_of(key, K, BN) & usable[:, None]
        native = native | row_native
        total = tl.sum(tl.sum(tl.where(row_native, score, 0.0), axis=1), axis=0)
        kept = tl.sum(tl.sum(tl.where(row_native & keep, score, 0.0), axis=1), axis=0)
        row_share = tl.where(total > 0, kept / total, 1.0)
        voted += tl.sum(usable.to(tl.int32), axis=0)
        below += (row_share < 0.5).to(tl.int32)
        least = tl.minimum(least, row_share)
        if RENORMALIZE:  # every row weighs the same
            kept = tl.where(total > 0, kept / total, 0.0)
            total = tl.where(total > 0, 1.0, 0.0)
        kept_weight += kept
        all_weight += total
        choice = score + bias[None, :] if SCORING == SIGMOID else tl.maximum(x, LOWEST_FLOAT)
        choice = tl.where(keep & inside, choice, float("-inf"))
        active = active | (inside_set(choice, row_native, K, BN, GROUPS, KEEP_GROUPS) & usable[:, None])
        row += 1
    device = tl.load(devices_ptr + layer * N + cols, mask=inside, other=-1)
    load, rank = 0, 0
    while rank < num_devices:
        load = tl.maximum(load, tl.sum(tl.sum((keep & (device == rank)).to(tl.int32), axis=1), axis=0))
        rank += 1
    place = sums + layer
    tl.store(place, tl.load(place) + tl.sum(tl.sum(native.to(tl.int32), axis=1), axis=0))
    tl.store(place + layers, tl.load(place + layers) + tl.sum(tl.sum(keep.to(tl.int32), axis=1), axis=0))
    tl.store(place + 2 * layers, tl.load(place + 2 * layers) + tl.sum(tl.sum(active.to(tl.int32), axis=1), axis=0))
    share = tl.where(all_weight > 0, kept_weight / all_weight, 1.0)
    tl.store(place + 3 * layers, tl.load(place + 3 * layers) + share)
    below_half = below / tl.maximum(voted, 1)
    tl.store(place + 4 * layers, tl.load(place + 4 * layers) + below_half)
    tl.store(place + 5 * layers, tl.load(place + 5 * layers) + least)
    tl.store(place + 6 * layers, tl.load(place + 6 * layers) + load)
