"""Selection as one Triton launch: router logits -> S, without a sort, a rounded sum or a host synchronisation. With
ROUTE also the routing: each row's experts inside S, and the tables that the experts' kernel reads, in one of two forms
(routing_tables.py, routing_blocks.py).

The steps are those of `algorithms/`. Rows and columns need opposite layouts, one row per warp and one expert per
thread. Changing a tile's layout inside a kernel costs more than all the arithmetic. So votes go through a little
scratch memory (column_choice.leave_votes, add_up), which costs one trip to the cache.

What changes from step to step is read from device memory (control.Control), so a captured graph follows it.
"""

import triton
import triton.language as tl

from xshare.kernels.column_choice import add_up, choose, leave_votes
from xshare.kernels.control_words import LayerNumber, Word
from xshare.kernels.expert_blocks import scores_inside, write_best, write_blocks, write_members, write_weights
from xshare.kernels.expert_sorting import (
    bits_set,
    leave_marks,
    leave_rows,
    marks_of,
    masked,
    top_inside,
    weigh,
    write_pairs,
    write_tables,
)
from xshare.kernels.routing_tables import FORM_BLOCKS, FORM_IDS, FORM_SORTED
from xshare.kernels.row_votes import LOWEST_FLOAT, SIGMOID, SOFTMAX, addresses, as_rows, fold, read_rows, vote, votes
from xshare.kernels.two_halves import all_act, votes_of_all

GATE, ROWS, REQUESTS, K0, MR, MG, ROUNDS, TOPK, POWER, PROTECTED, COST_TABLE, SAMPLE = (
    tl.constexpr(int(word)) for word in list(Word)[: Word.SAMPLE + 1]
)
M, TAU, RHO, LAM = (tl.constexpr(int(own)) for own in LayerNumber)
SORTED, IDS, BLOCKED = tl.constexpr(FORM_SORTED), tl.constexpr(FORM_IDS), tl.constexpr(FORM_BLOCKS)

# EARLY, programmatic dependent launch: a kernel starts while the previous one still runs, and waits for it before
# touching logits, outputs or scratch, which earlier kernels read or write. The control, the layer's numbers and the
# bias change only between steps, never in the kernel just before, so they may be loaded ahead of the wait.


@triton.jit
def _write_set(S, keep, bias, masked_bias, N: tl.constexpr, BN: tl.constexpr, MASK_BIAS: tl.constexpr):
    cols = tl.arange(0, BN)
    tl.store(keep + cols, S.to(tl.int8), mask=cols < N)
    if MASK_BIAS:
        tl.store(masked_bias + cols, tl.where(S, bias, LOWEST_FLOAT), mask=cols < N)


@triton.jit
def _rows_at(logits, stride, first, present, N: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, SPAN: tl.constexpr):
    """A tile of unchanged logits from row `first` -> rows, addresses, which of them exist, values [BR, BN].

    Rows past the last one read the last one: they do not vote, and writing back for them writes the last row's values
    again. A mask that differs by row would cost 1 us at 16 rows.
    """
    rows = first + tl.arange(0, BR)
    place, exists = addresses(tl.minimum(rows, present - 1), stride, N, BN, SPAN)
    return rows, place, exists, as_rows(tl.load(logits + place, mask=exists, other=float("-inf")), BN)


@triton.jit
def _leave_seen(seen, sample, rows, present, x, N: tl.constexpr, BN: tl.constexpr):
    """At a sampled step, save the logits before masking: native routing is computed from them later."""
    if sample != 0:
        cols = tl.arange(0, BN)
        tl.store(seen + rows[:, None] * N + cols[None, :], x, mask=(rows < present)[:, None] & (cols < N)[None, :])


@triton.jit
def _mask_rows(logits, place, exists, x, S, LOWEST: tl.constexpr):
    """Mask logits outside S. Logits inside S are written back unchanged, so that whole vectors are stored."""
    tile = tl.reshape(masked(x, S[None, :], LOWEST), [x.shape[0], place.shape[0], place.shape[2]])
    tl.store(logits + place, tl.permute(tile, (1, 0, 2)), mask=exists)


@triton.jit
def _share_inside(x, rows, top, total, S, end, SCORING: tl.constexpr):
    """Each row's share of its score inside S, from its logits, best logit and total; 1 for a row that cannot vote."""
    value = x.to(tl.float32)
    score = value
    if SCORING == SOFTMAX:
        score = tl.exp(value - top[:, None])
    if SCORING == SIGMOID:
        score = tl.sigmoid(value)
    usable = (total > 0) & (top < float("inf")) & (top > float("-inf")) & (rows < end)  # NaN is not above zero
    kept = tl.sum(tl.where(S[None, :] & usable[:, None], score, 0.0), axis=1)
    return tl.where(usable, kept / total, 1.0)


@triton.jit
def _leave_open(
    first, present, keep, bias, masked_bias, share,
    N: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, MASK_BIAS: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    """The gate is closed: S = E, and logits stay as they are."""
    rows = first + tl.arange(0, BR)
    if first == 0:
        _write_set(tl.arange(0, BN) < N, keep, bias, masked_bias, N, BN, MASK_BIAS)
    if SHARE:
        tl.store(share + rows, tl.full([BR], 1.0, tl.float32), mask=rows < present)


@triton.jit
def _vote_in_registers(
    x, rows, end, bias, protected_ptr, guarded, k0, rho, by_top_k, power, stats,
    N: tl.constexpr, BR: tl.constexpr, BQ: tl.constexpr, BN: tl.constexpr, TOP_K: tl.constexpr,
    SCORING: tl.constexpr, RENORMALIZE: tl.constexpr, GROUPS: tl.constexpr, KEEP_GROUPS: tl.constexpr,
    PROTECT: tl.constexpr, UNIQUE: tl.constexpr, STATS: tl.constexpr,
):  # fmt: skip
    """The result of `votes` for the rows in this program's registers, without request budgets."""
    value = tl.where((rows < end)[:, None], x.to(tl.float32), float("-inf"))
    score, key, best, usable, top, total = read_rows(value, bias, N, BR, BN, SCORING, GROUPS, KEEP_GROUPS, UNIQUE)
    protected = usable
    if PROTECT:
        protected = tl.load(protected_ptr + rows, mask=rows < end * guarded, other=0) != 0
    high, low, count = vote(
        value, score, key, best, usable, top, total, protected, guarded, k0, rho, by_top_k, power,
        BN, TOP_K, SCORING, RENORMALIZE, PROTECT, UNIQUE,
    )  # fmt: skip
    if STATS:
        tl.store(stats + 2 * rows, top, mask=rows < end)
        tl.store(stats + 2 * rows + 1, total, mask=rows < end)
    return fold(high, BQ), fold(low, BQ), fold(count, BQ)


@triton.jit
def _meet(arrivals, BLOCKS: tl.constexpr):
    """Wait for all programs of the launch. What they wrote before can then be read, bypassing the nearest cache."""
    tl.debug_barrier()
    if BLOCKS > 1:
        arrived = tl.atomic_add(arrivals, 1, sem="acq_rel", scope="gpu")
        target = (arrived // BLOCKS + 1) * BLOCKS
        arrived += 1
        while arrived < target:
            arrived = tl.atomic_add(arrivals, 0, sem="acquire", scope="gpu")
        tl.debug_barrier()


@triton.jit(do_not_specialize=["present", "most_tiles", "shift"])  # one kernel for all row counts of a bucket
def select_in_one_tile(
    logits, stride, present, bias_ptr, control, own, protected_ptr, cost, devices, num_devices, keep, masked_bias,
    share, seen, halves, counts, order, pairs, weights, hist, offsets, tiles, most_tiles, keys, marks, places,
    ids, row_sums, shift,
    N: tl.constexpr, BR: tl.constexpr, BQ: tl.constexpr, BN: tl.constexpr, SPAN: tl.constexpr,
    TOP_K: tl.constexpr, SCORING: tl.constexpr, RENORMALIZE: tl.constexpr,
    GROUPS: tl.constexpr, KEEP_GROUPS: tl.constexpr,
    DEVICES: tl.constexpr, COST: tl.constexpr, PROTECT: tl.constexpr, UNIQUE: tl.constexpr,
    MASS: tl.constexpr, COVERAGE: tl.constexpr, PRICE: tl.constexpr,
    MASK_LOGITS: tl.constexpr, MASK_BIAS: tl.constexpr, SHARE: tl.constexpr, SEEN: tl.constexpr,
    ROUTE: tl.constexpr, ROWS_MOST: tl.constexpr, OFFSETS: tl.constexpr, TILES: tl.constexpr, TILES_MOST: tl.constexpr,
    SLOTS: tl.constexpr, EXACT: tl.constexpr, LOWEST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Few rows and no request budgets: one program holds one tile in registers from beginning to end."""
    if EARLY:  # nothing is loaded ahead of the wait: measured, that made this kernel no faster
        tl.extra.cuda.gdc_wait()
    # All loads are issued before any is waited for: each trip to memory costs half a microsecond.
    end = tl.minimum(tl.load(control + ROWS), present)
    k0, m_g, rounds = tl.load(control + K0), tl.load(control + MG), tl.load(control + ROUNDS)
    by_top_k, power = tl.load(control + TOPK), tl.load(control + POWER)
    own_m, tau = tl.load(own + M), tl.load(own + TAU) if MASS else -1.0
    own_rho, lam = tl.load(own + RHO) if COVERAGE else 0.0, tl.load(own + LAM) if PRICE else 0.0
    sample = tl.load(control + SAMPLE)
    table = tl.load(control + COST_TABLE) if COST else -1
    cols = tl.arange(0, BN)
    bias = tl.load(bias_ptr + cols, mask=cols < N, other=0.0)
    gate = tl.load(control + GATE)
    rows, place, exists, x = _rows_at(logits, stride, 0, present, N, BR, BN, SPAN)
    S = cols < N
    if gate == 0:
        _leave_open(0, present, keep, bias, masked_bias, share, N, BR, BN, MASK_BIAS, SHARE)
    else:
        m = own_m.to(tl.int32)  # after the load of the logits is issued
        rho = tl.cast(own_rho, tl.float32) if COVERAGE else 0.0
        value = tl.where((rows < end)[:, None], x.to(tl.float32), float("-inf"))
        score, key, best, usable, top, total = read_rows(value, bias, N, BR, BN, SCORING, GROUPS, KEEP_GROUPS, UNIQUE)
        protected, guarded = usable, 0
        if PROTECT:
            guarded = tl.load(control + PROTECTED)
            protected = tl.load(protected_ptr + rows, mask=rows < end * guarded, other=0) != 0
        high, low, count = vote(
            value, score, key, best, usable, top, total, protected, guarded, k0, rho, by_top_k, power,
            BN, TOP_K, SCORING, RENORMALIZE, PROTECT, UNIQUE,
        )  # fmt: skip
        high, low, count = fold(high, BQ), fold(low, BQ), fold(count, BQ)
        leave_votes(high, low, count, halves, counts, 0, BQ, BQ, BN)
        tl.debug_barrier()
        u, count = add_up(halves, counts, BQ, BN, True)
        S = choose(
            u, count, m, m_g, rounds, tau, lam, table, cost + tl.maximum(table, 0) * (N + 1), order, devices,
            num_devices, N, BN, TOP_K, DEVICES, COST,
        )  # fmt: skip
        if MASK_LOGITS:
            _mask_rows(logits, place, exists, x, S, LOWEST)
        if SHARE:
            kept = tl.sum(tl.where(S[None, :], score, 0.0), axis=1) / total
            tl.store(share + rows, tl.where(usable & (total > 0), kept, 1.0), mask=rows < present)
        _write_set(S, keep, bias, masked_bias, N, BN, MASK_BIAS)
    if ROUTE >= IDS:
        score = scores_inside(x, S, logits, stride, rows, 0, present, places, row_sums, N, BN, LOWEST, EXACT)
        chosen = write_best(score, S, rows, present, ids, keys, BN, TOP_K)
        if ROUTE == BLOCKED:
            leave_marks(chosen, marks, BQ, BN)
        tl.debug_barrier()
        write_weights(keys, 0, present, weights, BR, TOP_K, SLOTS)
        if ROUTE == BLOCKED:
            mark = marks_of(marks, BR, BQ, BN)
            first = write_blocks(bits_set(mark), shift, pairs, tiles, offsets, present * TOP_K, 0, 1, BN)
            tl.store(places + cols, first)
            tl.store(places + BN + cols, mark)
            tl.debug_barrier()
            write_members(ids, 0, present, places, pairs, BR, BN, TOP_K, SLOTS)
    if ROUTE == SORTED:
        key, chosen = top_inside(x, S, N, BN, TOP_K, LOWEST)
        leave_rows(key, chosen & (rows < present)[:, None], keys, marks, rows, BQ, BN, TOP_K)
        tl.debug_barrier()
        mark = marks_of(marks, BR, BQ, BN)
        pair, pair_exists, column, weight = weigh(keys, 0, present, weights, BR, TOP_K)
        first = write_tables(
            bits_set(mark), hist, offsets, OFFSETS, tiles, TILES, most_tiles, 0, 1, N, BN, ROWS_MOST, TILES_MOST
        )
        tl.store(places + cols, first)
        tl.store(places + BN + cols, mark)
        tl.debug_barrier()
        write_pairs(pair, pair_exists, column, weight, 0, places, pairs, pairs + present * TOP_K, weights, BN, TOP_K)
    if SEEN:
        _leave_seen(seen, sample, rows, present, x, N, BN)


@triton.jit(do_not_specialize=["present", "most_tiles", "shift"])
def select_in_blocks(
    logits, stride, present, bias_ptr, starts, control, own, protected_ptr, cost, devices, num_devices, keep,
    masked_bias, share, seen, stats, halves, counts, sums, totals, order, arrivals, pairs, weights, hist, offsets,
    tiles, most_tiles, keys, marks, places, ids, row_sums, shift, hists, message,
    BLOCKS: tl.constexpr, PART: tl.constexpr, QUOTA: tl.constexpr, DIRECT: tl.constexpr, ACROSS: tl.constexpr,
    N: tl.constexpr, BR: tl.constexpr, BQ: tl.constexpr, BN: tl.constexpr, SPAN: tl.constexpr, EACH: tl.constexpr,
    TOP_K: tl.constexpr, SCORING: tl.constexpr, RENORMALIZE: tl.constexpr,
    GROUPS: tl.constexpr, KEEP_GROUPS: tl.constexpr,
    DEVICES: tl.constexpr, COST: tl.constexpr, PROTECT: tl.constexpr, UNIQUE: tl.constexpr,
    MASS: tl.constexpr, COVERAGE: tl.constexpr, PRICE: tl.constexpr,
    MASK_LOGITS: tl.constexpr, MASK_BIAS: tl.constexpr, SHARE: tl.constexpr, SEEN: tl.constexpr,
    ROUTE: tl.constexpr, ROWS_MOST: tl.constexpr, OFFSETS: tl.constexpr, TILES: tl.constexpr, TILES_MOST: tl.constexpr,
    SLOTS: tl.constexpr, EXACT: tl.constexpr, LOWEST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """More rows, or request budgets: every program votes for BR rows, or for QUOTA requests with budgets; then all
    meet, and each writes its BR rows.

    They meet by counting arrivals: the few programs of a launch are all on the chip at once, so they can wait for each
    other. Triton's interpreter runs programs one after another, so they cannot; there PART 1 votes, PART 2 chooses, and
    with ROUTE PART 3 sorts the rows, each in its own launch. PART 0 is all of it. With ACROSS the parts are separate
    launches on any device: the votes of all ranks are summed in between, and PART 2 reads the sums (two_halves.py).
    """
    block = tl.program_id(0)
    cols = tl.arange(0, BN)
    end = tl.minimum(tl.load(control + ROWS), present)
    k0, m_r, m_g = tl.load(control + K0), tl.load(control + MR), tl.load(control + MG)
    by_top_k, power, guarded = tl.load(control + TOPK), tl.load(control + POWER), tl.load(control + PROTECTED)
    own_m, tau = tl.load(own + M), tl.load(own + TAU) if MASS else -1.0
    own_rho, lam = tl.load(own + RHO) if COVERAGE else 0.0, tl.load(own + LAM) if PRICE else 0.0
    rounds, sample = tl.load(control + ROUNDS), tl.load(control + SAMPLE)
    table = tl.load(control + COST_TABLE) if COST else -1
    last = end if EACH == 0 else tl.load(control + REQUESTS)
    bias = tl.load(bias_ptr + cols, mask=cols < N, other=0.0)
    if EARLY:
        tl.extra.cuda.gdc_wait()
    gate = tl.load(control + GATE)  # in the words' cache line; if loaded earlier, ptxas waits for it before the logits
    if ACROSS and PART > 1:
        gate = (gate == 1).to(tl.int32) * all_act(control, message, BN)
    rows, place, exists, x = _rows_at(logits, stride, block * BR, present, N, BR, BN, SPAN)
    S = cols < N
    if gate == 0:
        _leave_open(block * BR, present, keep, bias, masked_bias, share, N, BR, BN, MASK_BIAS, SHARE)
    else:
        m = own_m.to(tl.int32)  # after the load of the logits is issued
        rho = tl.cast(own_rho, tl.float32) if COVERAGE else 0.0
        if PART < 2:
            if EACH == 0 or m_r == 0:
                high, low, count = _vote_in_registers(
                    x, rows, end, bias, protected_ptr, guarded, k0, rho, by_top_k, power, stats,
                    N, BR, BQ, BN, TOP_K, SCORING, RENORMALIZE, GROUPS, KEEP_GROUPS, PROTECT, UNIQUE, SHARE,
                )  # fmt: skip
            else:
                high, low, count = votes(
                    logits, stride, bias, starts, block * QUOTA, tl.minimum(last, (block + 1) * QUOTA), end,
                    protected_ptr, guarded, k0, rho, by_top_k, power, m_r, stats,
                    N, BQ, BN, SPAN, EACH, TOP_K, SCORING, RENORMALIZE, GROUPS, KEEP_GROUPS, PROTECT, UNIQUE, SHARE,
                )  # fmt: skip
            if DIRECT:  # few enough rows for every program to sum all of them
                leave_votes(high, low, count, halves, counts, block * BQ, BLOCKS * BQ, BQ, BN)
            else:
                halves += block * 2 * BQ * BN
                counts += block * BQ * BN
                leave_votes(high, low, count, halves, counts, 0, BQ, BQ, BN)
                tl.debug_barrier()
                u, count = add_up(halves, counts, BQ, BN, False)
                tl.store(sums + block * BN + cols, u)
                tl.store(totals + block * BN + cols, count)
        if PART == 0 or PART == 2:
            if PART == 0:
                _meet(arrivals, BLOCKS)
            if ACROSS:
                u, count = votes_of_all(message, BN)
            elif DIRECT:
                u, count = add_up(halves, counts, BLOCKS * BQ, BN, False)
            else:
                u, count = tl.zeros([BN], tl.int64), tl.zeros([BN], tl.int32)
                for other in range(BLOCKS):
                    u += tl.load(sums + other * BN + cols, cache_modifier=".cg")
                    count += tl.load(totals + other * BN + cols, cache_modifier=".cg")
            top, total = tl.zeros([BR], tl.float32), tl.zeros([BR], tl.float32)
            if SHARE:
                top = tl.load(stats + 2 * rows, mask=rows < end, other=0.0, cache_modifier=".cg")
                total = tl.load(stats + 2 * rows + 1, mask=rows < end, other=0.0, cache_modifier=".cg")
            S = choose(
                u, count, m, m_g, rounds, tau, lam, table, cost + tl.maximum(table, 0) * (N + 1), order + block * BN,
                devices, num_devices, N, BN, TOP_K, DEVICES, COST,
            )  # fmt: skip
            if MASK_LOGITS:
                _mask_rows(logits, place, exists, x, S, LOWEST)
            if SHARE:
                tl.store(share + rows, _share_inside(x, rows, top, total, S, end, SCORING), mask=rows < present)
            if block == 0:
                _write_set(S, keep, bias, masked_bias, N, BN, MASK_BIAS)
    if ROUTE > 0:
        marks += block * BQ * BN
        places += block * 2 * BN
        if PART == 0 or PART == 2:
            if ROUTE == SORTED:
                key, chosen = top_inside(x, S, N, BN, TOP_K, LOWEST)
                leave_rows(key, chosen & (rows < present)[:, None], keys, marks, rows, BQ, BN, TOP_K)
            else:
                score = scores_inside(
                    x, S, logits, stride, rows, block * BR, present, places, row_sums, N, BN, LOWEST, EXACT
                )
                chosen = write_best(score, S, rows, present, ids, keys, BN, TOP_K)
                if ROUTE == BLOCKED:
                    leave_marks(chosen, marks, BQ, BN)
            tl.debug_barrier()
            if ROUTE >= IDS:
                write_weights(keys, block * BR, present, weights, BR, TOP_K, SLOTS)
            if ROUTE != IDS:
                mark = marks_of(marks, BR, BQ, BN)
                tl.store(places + BN + cols, mark)
                tl.store(hists + block * BN + cols, bits_set(mark))
        if PART == 0 and ROUTE != IDS:
            _meet(arrivals, BLOCKS)
        if (PART == 0 or PART == 3) and ROUTE != IDS:
            count, earlier = tl.zeros([BN], tl.int32), tl.zeros([BN], tl.int32)
            for other in range(BLOCKS):
                block_count = tl.load(hists + other * BN + cols, cache_modifier=".cg")
                count += block_count
                earlier += tl.where(other < block, block_count, 0)
            SHARED: tl.constexpr = BLOCKS if BLOCKS < 4 else 4
            if ROUTE == SORTED:
                first = write_tables(
                    count, hist, offsets, OFFSETS, tiles, TILES, most_tiles, block, SHARED, N, BN, ROWS_MOST, TILES_MOST
                )
            else:
                first = write_blocks(count, shift, pairs, tiles, offsets, present * TOP_K, block, BLOCKS, BN)
            tl.store(places + cols, first + earlier)
            tl.debug_barrier()
            if ROUTE == SORTED:
                pair, pair_exists, column, weight = weigh(keys, block * BR, present, weights, BR, TOP_K)
                write_pairs(
                    pair, pair_exists, column, weight, block * BR, places, pairs, pairs + present * TOP_K, weights,
                    BN, TOP_K,
                )  # fmt: skip
            else:
                write_members(ids, block * BR, present, places, pairs, BR, BN, TOP_K, SLOTS)
    if SEEN and (PART == 0 or PART == 2):
        _leave_seen(seen, sample, rows, present, x, N, BN)
