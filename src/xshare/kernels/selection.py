"""Selection as one Triton launch: router logits -> S, without a sort, a rounded sum or a host synchronisation.

The steps are those of `algorithms/`, on one [rows, N] tile in registers:

  _read_rows   logits -> score, choice, and which rows can vote
  _vote        each row's scores as integers, round(g * 2^32), and its top-k0
  _choose      column sums -> S, by counting for each expert how many others come before it (N x N compares)
  _mask_rows   the lowest finite logit outside S, so that the engine's own router refines

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
    """Logits [BR, BN], -inf where there are none -> score, choice, each row's best expert, usable, total score."""
    inside = (tl.arange(0, BN) < N)[None, :]
    if SCORING == SOFTMAX:
        top, best = tl.max(x, axis=1, return_indices=True)
        score = tl.exp(x - top[:, None])
        total = tl.sum(score, axis=1)  # NaN for a row that holds NaN, +inf or nothing but -inf
        usable = total == total
        score = score * (1.0 / total)[:, None]
        total = tl.where(usable, 1.0, 0.0)
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
    return tl.where(usable[:, None], score, 0.0), choice, best, usable, total


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
def _add(a_high, a_low, a_count, b_high, b_low, b_count):
    return a_high + b_high, a_low + b_low, a_count + b_count


@triton.jit
def _add_within(a_high, a_low, a_count, a_begins, b_high, b_low, b_count, b_begins):
    """Running sums that begin anew where a request does."""
    fresh = b_begins > 0
    return (
        tl.where(fresh, b_high, a_high + b_high),
        tl.where(fresh, b_low, a_low + b_low),
        tl.where(fresh, b_count, a_count + b_count),
        a_begins | b_begins,
    )


@triton.jit
def _join(high, low):
    return high.to(tl.float64) * 65536.0 + low.to(tl.float64)


@triton.jit
def _keys(sums, candidate, cols):
    """Unique keys of the candidates: larger sum first, then lower index; -1 for the rest."""
    return tl.where(candidate, sums * 512.0 + (511 - cols).to(tl.float64), -1.0)


@triton.jit
def _want_for_requests(
    high, low, count, m_r, rows, starts, num_requests, N: tl.constexpr, BN: tl.constexpr, BQ: tl.constexpr
):
    """Each request's m_r best experts by its own sums, wanted in its last row. -> counts with those wants added"""
    request = tl.arange(0, BQ)
    start = tl.load(starts + request, mask=request <= num_requests, other=-1)
    begins = tl.max((start[None, :] == rows[:, None]).to(tl.int32), axis=1)
    ends = tl.max((start[None, :] == rows[:, None] + 1).to(tl.int32), axis=1) > 0
    begins = tl.broadcast_to(begins[:, None], count.shape)
    high, low, asked, _ = tl.associative_scan((high, low, count, begins), 0, _add_within)
    cols = tl.arange(0, BN)[None, :]
    candidate = ends[:, None] & (cols < N) & (asked >= VOTER) & ((asked & (VOTER - 1)) == 0)
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
def _votes_of_block(
    x, bias, rows, starts, num_requests, k0, m_r, N: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
    SCORING: tl.constexpr, GROUPS: tl.constexpr, KEEP_GROUPS: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """-> column sums u float64 [BN], counts int32 [BN]; scores, usable and totals of the rows, for the kept mass"""
    score, choice, best, usable, total = _read_rows(x, bias, N, BR, BN, SCORING, GROUPS, KEEP_GROUPS)
    high, low, count = _vote(score, choice, best, usable, k0, BN)
    if BQ > 0:
        if m_r > 0:
            count = _want_for_requests(high, low, count, m_r, rows, starts, num_requests, N, BN, BQ)
    high, low, count = tl.reduce((high, low, count), 0, _add)
    return _join(high, low), count, score, usable, total


@triton.jit
def _choose(
    u, count, m, m_g, tau, devices, num_devices, N: tl.constexpr, BN: tl.constexpr, TOP_K: tl.constexpr,
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
    place = tl.sum((key[:, None] > key[None, :]).to(tl.int32), axis=0)  # how many come before each expert
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
        # The sum up to and with each expert, less its own: with >= the compiler cannot share the compares above, and
        # does not keep N x N bits alive for a branch that is seldom taken.
        before = tl.sum(tl.where(key[:, None] >= key[None, :], u[:, None], 0.0), axis=0) - u
        before += tl.sum(tl.where(S0, u, 0.0), axis=0)
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
def _write_mass(mass, score, usable, total, rows, live, S):
    """The share of each row's score that lies in S: what a router that does not renormalise must be scaled by."""
    kept = tl.sum(tl.where(S[None, :], score, 0.0), axis=1)
    tl.store(mass + rows, tl.where(usable & (total > 0), kept / total, 1.0), mask=live)


@triton.jit
def _mask_rows(logits, place, present, S, N: tl.constexpr, BN: tl.constexpr, LOWEST: tl.constexpr):
    """The lowest finite value outside S in every row, padding included. S = E writes nothing."""
    drop = present[:, None] & ((tl.arange(0, BN) < N) & (S == 0))[None, :]
    tl.store(logits + place, tl.full(place.shape, LOWEST, tl.float32).to(logits.dtype.element_ty), mask=drop)


@triton.jit
def select_in_one_launch(
    logits, stride, present, bias_ptr, starts, control, tau_ptr, devices, num_devices, keep, masked_bias, mass,
    N: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, VEC: tl.constexpr, TOP_K: tl.constexpr, SCORING: tl.constexpr,
    GROUPS: tl.constexpr, KEEP_GROUPS: tl.constexpr, BQ: tl.constexpr, DEVICES: tl.constexpr, ROUNDS: tl.constexpr,
    MASK_LOGITS: tl.constexpr, MASK_BIAS: tl.constexpr, MASS: tl.constexpr, LOWEST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:  # launched while the kernel in front still runs (programmatic dependent launch): wait for what it writes
        tl.extra.cuda.gdc_wait()
    # Everything is asked for at once, before anything is waited for: each trip to memory costs half a microsecond.
    gate, voting, num_requests = tl.load(control + GATE), tl.load(control + ROWS), tl.load(control + REQUESTS)
    k0, m, m_r, m_g = tl.load(control + K0), tl.load(control + M), tl.load(control + MR), tl.load(control + MG)
    tau = tl.load(tau_ptr)
    rows, cols = tl.arange(0, BR), tl.arange(0, BN)
    # VEC = BN / 32 puts each row inside one warp: wider loads would make the sums over rows below fight for banks.
    place = rows[:, None] * stride + tl.max_contiguous(cols, VEC)[None, :]
    there = (rows < present)[:, None] & (cols < N)[None, :]
    x = tl.load(logits + place, mask=there, other=float("-inf")).to(tl.float32)
    bias = tl.load(bias_ptr + cols, mask=cols < N, other=0.0)
    if gate == 0:
        _write_set(cols < N, keep, bias, masked_bias, N, BN, MASK_BIAS)
        if MASS:
            tl.store(mass + rows, tl.full([BR], 1.0, tl.float32), mask=rows < present)
    else:
        live = rows < voting
        x = tl.where(live[:, None], x, float("-inf"))
        u, count, score, usable, total = _votes_of_block(
            x, bias, rows, starts, num_requests, k0, m_r, N, BR, BN, SCORING, GROUPS, KEEP_GROUPS, BQ
        )
        S = _choose(u, count, m, m_g, tau, devices, num_devices, N, BN, TOP_K, DEVICES, ROUNDS)
        if MASK_LOGITS:
            _mask_rows(logits, place, rows < present, S, N, BN, LOWEST)
        _write_set(S, keep, bias, masked_bias, N, BN, MASK_BIAS)
        if MASS:
            _write_mass(mass, score, usable, total, rows, live, S)


@triton.jit
def vote_in_blocks(
    logits, stride, present, bias_ptr, starts, control, sums, counts,
    N: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, SCORING: tl.constexpr,
    GROUPS: tl.constexpr, KEEP_GROUPS: tl.constexpr, QUOTA: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """The first of two launches: every block leaves its column sums and counts.

    Without requests (QUOTA = 0) a block is BR consecutive rows. With them it is QUOTA consecutive requests, which have
    at most BR rows together.
    """
    if tl.load(control + GATE) != 0:
        block = tl.program_id(0)
        cols = tl.arange(0, BN)
        end = tl.load(control + ROWS)
        num_requests = 0
        if QUOTA == 0:
            rows = block * BR + tl.arange(0, BR)
        else:
            starts += block * QUOTA
            num_requests = tl.minimum(tl.maximum(tl.load(control + REQUESTS) - block * QUOTA, 0), QUOTA)
            rows = tl.load(starts) + tl.arange(0, BR)
            end = tl.minimum(end, tl.load(starts + num_requests))
        live = rows < tl.minimum(end, present)
        x = tl.load(
            logits + rows[:, None] * stride + cols[None, :],
            mask=live[:, None] & (cols < N)[None, :],
            other=float("-inf"),
        ).to(tl.float32)
        bias = tl.load(bias_ptr + cols, mask=cols < N, other=0.0)
        k0, m_r = tl.load(control + K0), tl.load(control + MR)
        u, count, _, _, _ = _votes_of_block(
            x, bias, rows, starts, num_requests, k0, m_r, N, BR, BN, SCORING, GROUPS, KEEP_GROUPS, BQ
        )
        tl.store(sums + block * BN + cols, u)
        tl.store(counts + block * BN + cols, count)


@triton.jit
def choose_and_mask(
    logits, stride, present, bias_ptr, control, tau_ptr, devices, num_devices, keep, masked_bias, mass, sums, counts,
    BLOCKS: tl.constexpr, N: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, TOP_K: tl.constexpr,
    SCORING: tl.constexpr, DEVICES: tl.constexpr, ROUNDS: tl.constexpr, MASK_LOGITS: tl.constexpr,
    MASK_BIAS: tl.constexpr, MASS: tl.constexpr, LOWEST: tl.constexpr,
):  # fmt: skip
    """The second: every program adds up the blocks, chooses the same S, and masks its own rows."""
    first = tl.program_id(0) * BR
    rows, cols = first + tl.arange(0, BR), tl.arange(0, BN)
    bias = tl.load(bias_ptr + cols, mask=cols < N, other=0.0)
    if tl.load(control + GATE) == 0:
        if first == 0:
            _write_set(cols < N, keep, bias, masked_bias, N, BN, MASK_BIAS)
        if MASS:
            tl.store(mass + rows, tl.full([BR], 1.0, tl.float32), mask=rows < present)
    else:
        u, count = tl.zeros([BN], tl.float64), tl.zeros([BN], tl.int32)
        for block in range(BLOCKS):
            u += tl.load(sums + block * BN + cols)
            count += tl.load(counts + block * BN + cols)
        m, m_g, tau = tl.load(control + M), tl.load(control + MG), tl.load(tau_ptr)
        S = _choose(u, count, m, m_g, tau, devices, num_devices, N, BN, TOP_K, DEVICES, ROUNDS)
        place = rows[:, None] * stride + cols[None, :]
        if first == 0:
            _write_set(S, keep, bias, masked_bias, N, BN, MASK_BIAS)
        if MASS:
            live = rows < tl.minimum(present, tl.load(control + ROWS))
            inside = live[:, None] & (cols < N)[None, :]
            x = tl.load(logits + place, mask=inside, other=float("-inf")).to(tl.float32)
            score, _, _, usable, total = _read_rows(x, bias, N, BR, BN, SCORING, 1, 1)
            _write_mass(mass, score, usable, total, rows, live, S)
        if MASK_LOGITS:
            _mask_rows(logits, place, rows < present, S, N, BN, LOWEST)
