"""Selection as one Triton launch: router logits -> S, without a sort, a rounded sum or a host synchronisation.

The steps are those of `algorithms/`, on one [rows, N] tile in registers:

  _read_rows   logits -> score, choice, and which rows can vote
  _vote        each row's scores as integers, round(g * 2^32), and its top-k0
  _choose      column sums -> S, by counting for each expert how many others come before it (N x N compares)
  _finish_rows the lowest finite logit outside S, so that the engine's own router refines

Integers live in floats, exactly: a score's integer is split into two halves of 16 bits, whose sums over 64 rows stay
below 2^24 and are exact in float32 in any order; column sums and keys stay below 2^53 and are exact in float64.

What changes from step to step is read from device memory (launch.Control), so a captured graph follows it.
"""

import triton
import triton.language as tl

SOFTMAX, SIGMOID, GIVEN = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
GATE, ROWS, REQUESTS, K0, M, MR, MG = (tl.constexpr(i) for i in range(7))  # the control words
LOWEST_FLOAT = tl.constexpr(-3.4028234663852886e38)
ROUND = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding and subtracting it rounds a float32 below 2^22 to an integer
VOTER = tl.constexpr(65536)  # a row's count of votes: one voter, plus 1 where the row wants the expert in S0


@triton.jit
def _limit_groups(choice, BR: tl.constexpr, BN: tl.constexpr, GROUPS: tl.constexpr, KEEP_GROUPS: tl.constexpr):
    """The model's own group rule: only the groups whose two best choices sum highest keep their choice."""
    SIZE: tl.constexpr = BN // GROUPS
    grouped = tl.reshape(choice, [BR, GROUPS, SIZE])
    value, best = tl.max(grouped, axis=2, return_indices=True)  # [BR, GROUPS]
    if SIZE > 1:
        place = tl.arange(0, SIZE)[None, None, :]
        value += tl.max(tl.where(place == best[:, :, None], float("-inf"), grouped), axis=2)
    group = tl.arange(0, GROUPS)
    mine, other = value[:, :, None], value[:, None, :]
    before = (other > mine) | ((other == mine) & (group[None, None, :] < group[None, :, None]))
    stays = tl.sum(before.to(tl.int32), axis=2) < KEEP_GROUPS
    return tl.reshape(tl.where(stays[:, :, None], grouped, float("-inf")), [BR, BN])


@triton.jit
def _read_rows(
    x, bias, N: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
    SCORING: tl.constexpr, GROUPS: tl.constexpr, KEEP_GROUPS: tl.constexpr,
):  # fmt: skip
    """Logits [BR, BN], -inf where there are none -> score, choice, and for each row its best expert, usable, the best
    logit and the total of the scores as they come (NaN or infinite for a row that cannot vote)."""
    inside = (tl.arange(0, BN) < N)[None, :]
    if SCORING == SOFTMAX:
        top, best = tl.max(x, axis=1, return_indices=True)
        score = tl.exp(x - top[:, None])
        total = tl.sum(score, axis=1)  # NaN for a row that holds NaN, +inf or nothing but -inf
        usable = total == total
        score = score * (1.0 / total)[:, None]
        choice = tl.where(inside, tl.maximum(x, LOWEST_FLOAT), float("-inf"))
    else:
        top = tl.max(x, axis=1)
        score = tl.sigmoid(x) if SCORING == SIGMOID else x
        score = tl.where(x == float("-inf"), 0.0, score)
        total = tl.sum(score, axis=1)
        usable = (total == total) & (top < float("inf")) & (top > float("-inf"))
        choice = score + bias[None, :] if SCORING == SIGMOID else x
        # An expert of choice -inf comes last but can be taken; one outside the model's N or its groups cannot.
        choice = tl.where(inside, tl.maximum(choice, LOWEST_FLOAT), float("-inf"))
        if GROUPS > 1:
            choice = _limit_groups(choice, BR, BN, GROUPS, KEEP_GROUPS)
        _, best = tl.max(choice, axis=1, return_indices=True)
    return tl.where(usable[:, None], score, 0.0), choice, best, usable, top, total


@triton.jit
def _vote(score, choice, best, usable, k0, BN: tl.constexpr):
    """-> the scores' integers in two halves, float32 [BR, BN], and counts, int32: VOTER, plus 1 for a row's top-k0."""
    cols = tl.arange(0, BN)[None, :]
    wanted = (cols == best[:, None]) & (k0 > 0)
    done = 1
    while done < k0:
        left = tl.where(wanted, float("-inf"), choice)
        value, best = tl.max(left, axis=1, return_indices=True)
        wanted = wanted | ((cols == best[:, None]) & (value > float("-inf"))[:, None])
        done += 1
    fixed = score * 4294967296.0
    high = (fixed * 0.0000152587890625 + ROUND) - ROUND  # / 2^16
    low = (fixed - high * 65536.0 + ROUND) - ROUND
    return high, low, tl.where(usable[:, None], wanted.to(tl.int32) + VOTER, 0)


@triton.jit
def _join(high, low):
    return high.to(tl.float64) * 65536.0 + low.to(tl.float64)


@triton.jit
def _keys(sums, candidate, cols):
    """Unique keys of the candidates: larger sum first, then lower index; -1 for the rest."""
    return tl.where(candidate, sums * 512.0 + (511 - cols).to(tl.float64), -1.0)


@triton.jit
def _want_best(high, low, count, m_r, N: tl.constexpr, BN: tl.constexpr):
    """Requests' sums [BQ, BN] and counts: each wants its m_r best experts beside those its rows want already."""
    cols = tl.arange(0, BN)[None, :]
    candidate = (cols < N) & (count >= VOTER) & ((count & (VOTER - 1)) == 0)
    key = _keys(_join(high, low), candidate, cols)
    done = 0
    while done < m_r:
        best = tl.max(key, axis=1)[:, None]
        hit = (key == best) & (best >= 0)
        count += hit.to(tl.int32)
        key = tl.where(hit, -1.0, key)
        done += 1
    return count


@triton.jit
def _votes(
    logits, stride, bias, starts, first, last, end, k0, m_r, stats,
    N: tl.constexpr, BQ: tl.constexpr, BN: tl.constexpr, VEC: tl.constexpr, EACH: tl.constexpr,
    SCORING: tl.constexpr, GROUPS: tl.constexpr, KEEP_GROUPS: tl.constexpr, STATS: tl.constexpr,
):  # fmt: skip
    """The votes of the requests [first, last), BQ at a time and each inside one warp -> sums and counts [BQ, BN].

    A request's rows are read EACH at a time; with EACH = 0 every row below `end` is a request of its own. Each row's
    best logit and total are left in `stats`, for the kept mass.
    """
    cols = tl.max_contiguous(tl.arange(0, BN), VEC)
    high, low = tl.zeros([BQ, BN], tl.float32), tl.zeros([BQ, BN], tl.float32)
    count = tl.zeros([BQ, BN], tl.int32)
    position = tl.minimum(first, last)
    while position < last:
        request = position + tl.arange(0, BQ)
        if EACH == 0:
            start, stop = request, tl.minimum(request + 1, end)
        else:
            start = tl.load(starts + request, mask=request < last, other=0)
            stop = tl.minimum(tl.load(starts + request + 1, mask=request < last, other=0), end)
        its_high, its_low = tl.zeros([BQ, BN], tl.float32), tl.zeros([BQ, BN], tl.float32)
        its_count = tl.zeros([BQ, BN], tl.int32)
        longest = tl.max(stop - start, axis=0) if EACH > 0 else 1
        done = tl.minimum(longest, 0)
        while done < longest:
            for offset in tl.static_range(max(EACH, 1)):
                rows = start + done + offset
                live = rows < stop
                there = live[:, None] & (cols < N)[None, :]
                x = tl.load(logits + rows[:, None] * stride + cols[None, :], mask=there, other=float("-inf")).to(
                    tl.float32
                )
                score, choice, best, usable, top, total = _read_rows(x, bias, N, BQ, BN, SCORING, GROUPS, KEEP_GROUPS)
                more_high, more_low, more_count = _vote(score, choice, best, usable, k0, BN)
                its_high, its_low, its_count = its_high + more_high, its_low + more_low, its_count + more_count
                if STATS:
                    tl.store(stats + 2 * rows, top, mask=live)
                    tl.store(stats + 2 * rows + 1, total, mask=live)
            done += max(EACH, 1)
        if EACH > 0:
            if m_r > 0:
                its_count = _want_best(its_high, its_low, its_count, m_r, N, BN)
        high, low, count = high + its_high, low + its_low, count + its_count
        position += BQ
    return high, low, count


@triton.jit
def _leave_votes(high, low, count, halves, counts, first, TILE: tl.constexpr, BQ: tl.constexpr, BN: tl.constexpr):
    """Votes [BQ, BN] in scratch, from row `first` of a tile of TILE rows, for `_add_up` to add up column by column.

    By way of memory: summing across warps inside the kernel costs several times that in bank conflicts.
    """
    place = (first + tl.arange(0, BQ))[:, None] * BN + tl.arange(0, BN)[None, :]
    tl.store(halves + place, high)
    tl.store(halves + TILE * BN + place, low)
    tl.store(counts + place, count)


@triton.jit
def _add_up(halves, counts, TILE: tl.constexpr, BN: tl.constexpr):
    """-> column sums u float64 [BN] and counts int32 [BN] of the TILE rows in scratch"""
    cols = tl.arange(0, BN)
    high, low, count = tl.zeros([BN], tl.float32), tl.zeros([BN], tl.float32), tl.zeros([BN], tl.int32)
    for row in tl.static_range(TILE):
        high += tl.load(halves + row * BN + cols, cache_modifier=".cg")
        low += tl.load(halves + (TILE + row) * BN + cols, cache_modifier=".cg")
        count += tl.load(counts + row * BN + cols, cache_modifier=".cg")
    return _join(high, low), count


@triton.jit
def _place(key, keys, BN: tl.constexpr):
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
def _choose(
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
    key = _keys(u, inside & (S0 == 0), cols)
    place = _place(key, keys, BN)
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
        key = _keys(u, inside & (S == 0), cols)
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


@triton.jit
def _write_set(S, keep, bias, masked_bias, N: tl.constexpr, BN: tl.constexpr, MASK_BIAS: tl.constexpr):
    cols = tl.arange(0, BN)
    tl.store(keep + cols, S.to(tl.int8), mask=cols < N)
    if MASK_BIAS:
        tl.store(masked_bias + cols, tl.where(S, bias, LOWEST_FLOAT), mask=cols < N)


@triton.jit
def _rows_at(logits, stride, first, present, N: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, VEC: tl.constexpr):
    """A tile of logits as they are, from row `first` -> rows, addresses, which are there, values."""
    # VEC = BN / 32 puts each row inside one warp.
    rows, cols = first + tl.arange(0, BR), tl.max_contiguous(tl.arange(0, BN), VEC)
    place = rows[:, None] * stride + cols[None, :]
    there = (rows < present)[:, None] & (cols < N)[None, :]
    return rows, place, there, tl.load(logits + place, mask=there, other=float("-inf"))


@triton.jit
def _finish(
    logits, rows, place, there, x, top, total, S, present, end, mass,
    SCORING: tl.constexpr, MASK_LOGITS: tl.constexpr, MASS: tl.constexpr, LOWEST: tl.constexpr,
):  # fmt: skip
    """Rows of a tile, padding included: the lowest finite value outside S, and the share of the score inside S.

    A kept logit is written back as it was read, so that stores are whole; S = E changes no bit.
    """
    if MASK_LOGITS:
        lowest = tl.full(x.shape, LOWEST, tl.float32).to(logits.dtype.element_ty)
        tl.store(logits + place, tl.where(S[None, :], x, lowest), mask=there)
    if MASS:
        value = x.to(tl.float32)
        if SCORING == SOFTMAX:
            score = tl.exp(value - top[:, None])
        else:
            score = tl.sigmoid(value) if SCORING == SIGMOID else value
        usable = (total > 0) & (top < float("inf")) & (top > float("-inf")) & (rows < end)  # NaN is not above zero
        kept = tl.sum(tl.where(S[None, :] & there & usable[:, None], score, 0.0), axis=1)
        tl.store(mass + rows, tl.where(usable, kept / total, 1.0), mask=rows < present)


@triton.jit
def _leave_open(
    first, present, keep, bias, masked_bias, mass,
    N: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, MASK_BIAS: tl.constexpr, MASS: tl.constexpr,
):  # fmt: skip
    """The gate is closed: S = E, and no logit is touched."""
    rows = first + tl.arange(0, BR)
    if first == 0:
        _write_set(tl.arange(0, BN) < N, keep, bias, masked_bias, N, BN, MASK_BIAS)
    if MASS:
        tl.store(mass + rows, tl.full([BR], 1.0, tl.float32), mask=rows < present)


@triton.jit
def select_in_one_tile(
    logits, stride, present, bias_ptr, control, tau_ptr, devices, num_devices, keep, masked_bias, mass,
    halves, counts, keys,
    N: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, VEC: tl.constexpr,
    TOP_K: tl.constexpr, SCORING: tl.constexpr, GROUPS: tl.constexpr, KEEP_GROUPS: tl.constexpr,
    DEVICES: tl.constexpr, ROUNDS: tl.constexpr, MASK_LOGITS: tl.constexpr, MASK_BIAS: tl.constexpr,
    MASS: tl.constexpr, LOWEST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Few rows and no requests: one program, one tile, in registers from the first step to the last."""
    if EARLY:  # launched while the kernel in front still runs (programmatic dependent launch): wait for what it writes
        tl.extra.cuda.gdc_wait()
    # Asked for at once, before anything is waited for: each trip to memory costs half a microsecond.
    gate, end = tl.load(control + GATE), tl.minimum(tl.load(control + ROWS), present)
    k0, m, m_g, tau = tl.load(control + K0), tl.load(control + M), tl.load(control + MG), tl.load(tau_ptr)
    cols = tl.arange(0, BN)
    bias = tl.load(bias_ptr + cols, mask=cols < N, other=0.0)
    rows, place, there, x = _rows_at(logits, stride, 0, present, N, BR, BN, VEC)
    if gate == 0:
        _leave_open(0, present, keep, bias, masked_bias, mass, N, BR, BN, MASK_BIAS, MASS)
    else:
        value = tl.where((rows < end)[:, None], x.to(tl.float32), float("-inf"))
        score, choice, best, usable, top, total = _read_rows(value, bias, N, BR, BN, SCORING, GROUPS, KEEP_GROUPS)
        high, low, count = _vote(score, choice, best, usable, k0, BN)
        _leave_votes(high, low, count, halves, counts, 0, BR, BR, BN)
        tl.debug_barrier()
        u, count = _add_up(halves, counts, BR, BN)
        S = _choose(u, count, keys, m, m_g, tau, devices, num_devices, N, BN, TOP_K, DEVICES, ROUNDS)
        _finish(logits, rows, place, there, x, top, total, S, present, end, mass, SCORING, MASK_LOGITS, MASS, LOWEST)
        _write_set(S, keep, bias, masked_bias, N, BN, MASK_BIAS)


@triton.jit
def select_in_blocks(
    logits, stride, present, bias_ptr, starts, control, tau_ptr, devices, num_devices, keep, masked_bias, mass,
    stats, halves, counts, sums, totals, keys, arrivals,
    BLOCKS: tl.constexpr, PART: tl.constexpr, QUOTA: tl.constexpr, DIRECT: tl.constexpr,
    N: tl.constexpr, BR: tl.constexpr, BQ: tl.constexpr, BN: tl.constexpr, VEC: tl.constexpr, EACH: tl.constexpr,
    TOP_K: tl.constexpr, SCORING: tl.constexpr, GROUPS: tl.constexpr, KEEP_GROUPS: tl.constexpr,
    DEVICES: tl.constexpr, ROUNDS: tl.constexpr, MASK_LOGITS: tl.constexpr, MASK_BIAS: tl.constexpr,
    MASS: tl.constexpr, LOWEST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """More rows, or requests: every program takes QUOTA requests, all meet, and each then finishes BR rows.

    They meet by counting arrivals, for which the few programs of a launch, all on the chip at once, can wait. Where
    they cannot (Triton's interpreter runs one after another), PART 1 votes and PART 2 does the rest, in two launches;
    PART 0 is both.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
    block = tl.program_id(0)
    cols = tl.arange(0, BN)
    gate, end = tl.load(control + GATE), tl.minimum(tl.load(control + ROWS), present)
    k0, m, m_r, m_g = tl.load(control + K0), tl.load(control + M), tl.load(control + MR), tl.load(control + MG)
    tau = tl.load(tau_ptr)
    last = end if EACH == 0 else tl.load(control + REQUESTS)
    bias = tl.load(bias_ptr + cols, mask=cols < N, other=0.0)
    if gate == 0:
        _leave_open(block * BR, present, keep, bias, masked_bias, mass, N, BR, BN, MASK_BIAS, MASS)
    else:
        if PART != 2:
            high, low, count = _votes(
                logits, stride, bias, starts, block * QUOTA, tl.minimum(last, (block + 1) * QUOTA), end, k0, m_r, stats,
                N, BQ, BN, VEC, EACH, SCORING, GROUPS, KEEP_GROUPS, MASS,
            )  # fmt: skip
            if DIRECT:  # few enough for everyone to add up all rows
                _leave_votes(high, low, count, halves, counts, block * BQ, BLOCKS * BQ, BQ, BN)
            else:
                halves += block * 2 * BQ * BN
                counts += block * BQ * BN
                _leave_votes(high, low, count, halves, counts, 0, BQ, BQ, BN)
                tl.debug_barrier()
                u, count = _add_up(halves, counts, BQ, BN)
                tl.store(sums + block * BN + cols, u)
                tl.store(totals + block * BN + cols, count)
        if PART != 1:
            rows, place, there, x = _rows_at(logits, stride, block * BR, present, N, BR, BN, VEC)
            tl.debug_barrier()
            if PART == 0 and BLOCKS > 1:
                seen = tl.atomic_add(arrivals, 1, sem="acq_rel", scope="gpu")
                everyone = (seen // BLOCKS + 1) * BLOCKS
                seen += 1
                while seen < everyone:
                    seen = tl.atomic_add(arrivals, 0, sem="acquire", scope="gpu")
                tl.debug_barrier()
            if DIRECT:
                u, count = _add_up(halves, counts, BLOCKS * BQ, BN)
            else:
                u, count = tl.zeros([BN], tl.float64), tl.zeros([BN], tl.int32)
                for other in range(BLOCKS):
                    u += tl.load(sums + other * BN + cols, cache_modifier=".cg")
                    count += tl.load(totals + other * BN + cols, cache_modifier=".cg")
            top, total = tl.zeros([BR], tl.float32), tl.zeros([BR], tl.float32)
            if MASS:
                top = tl.load(stats + 2 * rows, mask=rows < end, other=0.0, cache_modifier=".cg")
                total = tl.load(stats + 2 * rows + 1, mask=rows < end, other=0.0, cache_modifier=".cg")
            keys += block * BN
            S = _choose(u, count, keys, m, m_g, tau, devices, num_devices, N, BN, TOP_K, DEVICES, ROUNDS)
            _finish(
                logits, rows, place, there, x, top, total, S, present, end, mass, SCORING, MASK_LOGITS, MASS, LOWEST
            )
            if block == 0:
                _write_set(S, keep, bias, masked_bias, N, BN, MASK_BIAS)
