"""The fused selection, row by row: logits -> scores, each row's top-k0, and the votes of a batch or request.

Votes are integers, round(g * 2^32), held exactly in floats: each is split into two halves of 16 bits, whose sums over
256 rows stay within 2^24 and are exact in float32 in any order.
"""

import triton
import triton.language as tl

from xshare.kernels.ranking import NOT_THERE, as_key, as_value, best_left, column_of, down_to, without

SOFTMAX, SIGMOID, GIVEN = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
LOWEST_FLOAT = tl.constexpr(-3.4028234663852886e38)
ROUND = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding and subtracting it rounds a float32 below 2^22 to an integer
VOTER = tl.constexpr(65536)  # a voting row adds VOTER to every column's count, plus 1 for an expert that S0 must hold


@triton.jit
def _limit_groups(choice, BR: tl.constexpr, BN: tl.constexpr, GROUPS: tl.constexpr, KEEP_GROUPS: tl.constexpr):
    """The model's own group rule: the groups with the largest sum of two best choices keep their choices."""
    SIZE: tl.constexpr = BN // GROUPS
    grouped = tl.reshape(choice, [BR, GROUPS, SIZE])
    value, best = tl.max(grouped, axis=2, return_indices=True)  # [BR, GROUPS]
    if SIZE > 1:
        place = tl.arange(0, SIZE)[None, None, :]
        value += tl.max(tl.where(place == best[:, :, None], float("-inf"), grouped), axis=2)
    group = tl.arange(0, GROUPS)
    this, other = value[:, :, None], value[:, None, :]
    ahead = (other > this) | ((other == this) & (group[None, None, :] < group[None, :, None]))
    stays = tl.sum(ahead.to(tl.int32), axis=2) < KEEP_GROUPS
    return tl.reshape(tl.where(stays[:, :, None], grouped, float("-inf")), [BR, BN])


@triton.jit
def read_rows(
    x, bias, N: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
    SCORING: tl.constexpr, GROUPS: tl.constexpr, KEEP_GROUPS: tl.constexpr, UNIQUE: tl.constexpr = False,
):  # fmt: skip
    """Logits [BR, BN], -inf where there are none -> score and the key of the choice, [BR, BN]; per row its best key,
    whether it is usable, its best logit and the total of its scores (meaningless for an unusable row). Softmax scores
    are not yet divided by their total."""
    inside = (tl.arange(0, BN) < N)[None, :]
    if SCORING == SOFTMAX:
        # An expert of choice -inf ranks last but may be taken; a column beyond N or an excluded group may not.
        key = as_key(tl.where(inside, tl.maximum(x, LOWEST_FLOAT), float("-inf")), UNIQUE)
        best = tl.max(key, axis=1)
        top = as_value(best, UNIQUE)
        score = tl.exp(x - top[:, None])
        total = tl.sum(score, axis=1)
        usable = total > 0  # the total is NaN for a row with NaN or +inf, zero for a row of only -inf
    else:
        top = tl.max(x, axis=1)
        score = tl.sigmoid(x) if SCORING == SIGMOID else x
        score = tl.where(x == float("-inf"), 0.0, score)
        total = tl.sum(score, axis=1)
        usable = (total == total) & (top < float("inf")) & (top > float("-inf"))
        choice = score + bias[None, :] if SCORING == SIGMOID else x
        choice = tl.where(inside, tl.maximum(choice, LOWEST_FLOAT), float("-inf"))
        if GROUPS > 1:
            choice = _limit_groups(choice, BR, BN, GROUPS, KEEP_GROUPS)
        key = as_key(choice, UNIQUE)
        best = tl.max(key, axis=1)
    return tl.where(usable[:, None], score, 0.0), key, best, usable, top, total


@triton.jit
def log_sigmoid(x):
    return tl.minimum(x, 0.0) - tl.log(1 + tl.exp(-tl.abs(x)))


@triton.jit
def _sigmoid_weights(x, score, native, RENORMALIZE: tl.constexpr):
    """The native weights of a sigmoid router, zero outside the row's top-k."""
    if RENORMALIZE:  # in the log domain: right even if all scores underflow
        level = tl.maximum(log_sigmoid(x), LOWEST_FLOAT)
        level = tl.where(native, level, float("-inf"))
        score = tl.exp(level - tl.max(level, axis=1)[:, None])
    score = tl.where(native, score, 0.0)
    if RENORMALIZE:
        total = tl.sum(score, axis=1)
        score = score * (1.0 / tl.where(total > 0, total, 1.0))[:, None]
    return score


@triton.jit
def _cover(
    key, weight, top, reached, most, at, rho,
    BN: tl.constexpr, TOP_K: tl.constexpr, SCORING: tl.constexpr, UNIQUE: tl.constexpr,
):  # fmt: skip
    """The last native expert that a row needs for rho of its weight, as key and column. The walk begins at the row's
    best expert. Softmax weights follow from the logits alone; their total over the native experts is `reached`."""
    if SCORING == SOFTMAX:
        whole = reached
        held = tl.full([key.shape[0]], 1.0, tl.float32)  # exp(top - top)
    else:
        whole = tl.sum(weight, axis=1)
        held = tl.sum(tl.where(down_to(key, most, at, BN, UNIQUE), weight, 0.0), axis=1)
    goal = tl.where(rho >= 1, float("inf"), rho * whole)  # rho=1 keeps experts of weight 0 too
    last, last_at, left = most, at, key
    for _ in tl.static_range(1, TOP_K):
        left = without(left, most, at, BN, UNIQUE)
        most, at = best_left(left, BN, UNIQUE)
        short = (held < goal) & (most > NOT_THERE)
        last, last_at = tl.where(short, most, last), tl.where(short, at, last_at)
        if SCORING == SOFTMAX:
            held += tl.exp(as_value(most, UNIQUE) - top)
        else:
            held += tl.sum(tl.where(tl.arange(0, BN)[None, :] == at[:, None], weight, 0.0), axis=1)
    return last, last_at


@triton.jit
def vote(
    x, score, key, best, usable, top, total, protected, guarded, k0, rho, by_top_k, power,
    BN: tl.constexpr, TOP_K: tl.constexpr, SCORING: tl.constexpr, RENORMALIZE: tl.constexpr, PROTECT: tl.constexpr,
    UNIQUE: tl.constexpr,
):  # fmt: skip
    """-> the votes as two halves of integers, float32 [BR, BN], and counts, int32: VOTER, plus 1 for each of a row's
    own experts: its top-k0, what rho adds, and all its native ones if it is `protected` [BR]. `guarded`: whether any
    row is protected.

    The walk goes down each row's ranking. It keeps only the positions it stopped at: the experts above a position are
    one compare.
    """
    NATIVE: tl.constexpr = TOP_K > 0  # without a router, scores vote as they are
    best_at = column_of(key, best, BN, UNIQUE)
    most, at, left = best, best_at, key  # the walk's position, and the keys still to visit
    own, own_at, last, last_at = best, best_at, best, best_at  # positions of the k0-th and of the last native expert
    reached = tl.full([x.shape[0]], 1.0, tl.float32)  # total score of native experts: the first is exp(top - top)
    done = tl.minimum(k0, 0) + 1
    native = False
    if NATIVE:
        native = (by_top_k != 0) | (rho > 0)
        if PROTECT:
            native = native | (guarded != 0)
        if native:
            for turn in tl.static_range(1, TOP_K):
                left = without(left, most, at, BN, UNIQUE)
                most, at = best_left(left, BN, UNIQUE)
                own, own_at = tl.where(turn < k0, most, own), tl.where(turn < k0, at, own_at)
                if SCORING == SOFTMAX:
                    reached += tl.where(most > NOT_THERE, tl.exp(as_value(most, UNIQUE) - top), 0.0)
            last, last_at = most, at
            done = tl.maximum(done, TOP_K)
    while done < k0:
        left = without(left, most, at, BN, UNIQUE)
        most, at = best_left(left, BN, UNIQUE)
        own, own_at = most, at
        done += 1
    own = tl.where(k0 > 0, own, 2147483647)  # k0 = 0: no expert is above it
    kept = down_to(key, own, own_at, BN, UNIQUE)
    voted = score * (1.0 / total)[:, None] if SCORING == SOFTMAX else score
    if NATIVE:
        if native:
            top_k = down_to(key, last, last_at, BN, UNIQUE)
            if SCORING == SOFTMAX:
                weight = tl.where(top_k, score, 0.0) * (1.0 / (reached if RENORMALIZE else total))[:, None]
            else:
                weight = _sigmoid_weights(x, score, top_k & usable[:, None], RENORMALIZE)
            if rho > 0:
                last, last_at = _cover(key, weight, top, reached, best, best_at, rho, BN, TOP_K, SCORING, UNIQUE)
                kept = kept | down_to(key, last, last_at, BN, UNIQUE)
            if PROTECT:
                kept = kept | (top_k & protected[:, None])
            if by_top_k != 0:
                voted = weight
    if power > 1:
        squared = voted * voted
        voted = tl.where(power == 2, squared, tl.where(power == 3, squared * voted, squared * squared))
    fixed = tl.where(usable[:, None], voted, 0.0) * 4294967296.0
    high = (fixed * 0.0000152587890625 + ROUND) - ROUND  # / 2^16
    low = (fixed - high * 65536.0 + ROUND) - ROUND
    return high, low, tl.where(usable[:, None], kept.to(tl.int32) + VOTER, 0)


@triton.jit
def join(high, low):
    return high.to(tl.float64) * 65536.0 + low.to(tl.float64)


@triton.jit
def unique_keys(sums, candidate, cols):
    """Unique keys of the candidates: a larger sum gives a larger key, then a lower index; -1 for other experts."""
    return tl.where(candidate, sums.to(tl.int64) * 512 + (511 - cols), -1)


@triton.jit
def want_best(high, low, count, m_r, N: tl.constexpr, BN: tl.constexpr):
    """Add each request's m_r best other experts to its counts. Sums and counts are [BQ, BN], one line per request."""
    cols = tl.arange(0, BN)[None, :]
    candidate = (cols < N) & (count >= VOTER) & ((count & (VOTER - 1)) == 0)
    key = unique_keys(join(high, low), candidate, cols)
    # In two halves, because a warp finds its largest 32-bit integer in one instruction.
    key_high, key_low = (key >> 25).to(tl.int32), (key & 33554431).to(tl.int32)
    done = 0
    while done < m_r:
        best = tl.max(key_high, axis=1)[:, None]
        hit = (key_high == best) & (best >= 0)
        hit = hit & (key_low == tl.max(tl.where(hit, key_low, -1), axis=1)[:, None])
        count += hit.to(tl.int32)
        key_high = tl.where(hit, -1, key_high)
        done += 1
    return count


@triton.jit
def addresses(rows, stride, N: tl.constexpr, BN: tl.constexpr, SPAN: tl.constexpr):
    """The addresses of a tile of logits, [BN / SPAN, rows, SPAN], and which of them exist.

    A warp reads SPAN columns at once, so that a row of any width lies inside one warp.
    """
    PIECE: tl.constexpr = SPAN // 32 if SPAN > 32 else 1  # columns per thread; with more, two rows would share a warp
    cols = tl.arange(0, BN // SPAN)[:, None, None] * SPAN + tl.max_contiguous(tl.arange(0, SPAN), PIECE)[None, None, :]
    return rows[None, :, None] * stride + cols, cols < N


@triton.jit
def as_rows(tile, BN: tl.constexpr):
    """[BN / SPAN, rows, SPAN] -> [rows, BN]. No data moves between threads."""
    return tl.reshape(tl.permute(tile, (1, 0, 2)), [tile.shape[1], BN])


@triton.jit
def fold(tile, TO: tl.constexpr):
    """[rows, BN] -> [TO, BN]: row r is added to row r % TO, each thread by itself."""
    return tl.sum(tl.reshape(tile, [tile.shape[0] // TO, TO, tile.shape[1]]), axis=0)


@triton.jit
def votes(
    logits, stride, bias, starts, first, last, end, protected_ptr, guarded, k0, rho, by_top_k, power, m_r, stats,
    N: tl.constexpr, BQ: tl.constexpr, BN: tl.constexpr, SPAN: tl.constexpr, EACH: tl.constexpr, TOP_K: tl.constexpr,
    SCORING: tl.constexpr, RENORMALIZE: tl.constexpr, GROUPS: tl.constexpr,
    KEEP_GROUPS: tl.constexpr, PROTECT: tl.constexpr, UNIQUE: tl.constexpr, STATS: tl.constexpr,
):  # fmt: skip
    """The votes of the requests [first, last), BQ at a time, each inside one warp -> sums and counts [BQ, BN].

    A request's rows are read EACH at a time. Each row's best logit and total are written to `stats`, for its share
    inside S.
    """
    turn = tl.arange(0, EACH * BQ) // BQ
    high, low = tl.zeros([BQ, BN], tl.float32), tl.zeros([BQ, BN], tl.float32)
    count = tl.zeros([BQ, BN], tl.int32)
    position = tl.minimum(first, last)
    while position < last:
        request = position + tl.arange(0, EACH * BQ) % BQ
        start = tl.load(starts + request, mask=request < last, other=0)
        stop = tl.minimum(tl.load(starts + request + 1, mask=request < last, other=0), end)
        request_high, request_low = tl.zeros([BQ, BN], tl.float32), tl.zeros([BQ, BN], tl.float32)
        request_count = tl.zeros([BQ, BN], tl.int32)
        longest = tl.max(stop - start, axis=0)
        done = tl.minimum(longest, 0)
        while done < longest:
            rows = start + turn + done
            live = rows < stop
            place, exists = addresses(tl.where(live, rows, 0), stride, N, BN, SPAN)
            x = as_rows(tl.load(logits + place, mask=exists, other=float("-inf")).to(tl.float32), BN)
            x = tl.where(live[:, None], x, float("-inf"))
            score, key, best, usable, top, total = read_rows(
                x, bias, N, EACH * BQ, BN, SCORING, GROUPS, KEEP_GROUPS, UNIQUE
            )
            protected = usable
            if PROTECT:
                protected = tl.load(protected_ptr + rows, mask=rows < stop * guarded, other=0) != 0
            rows_high, rows_low, rows_count = vote(
                x, score, key, best, usable, top, total, protected, guarded, k0, rho, by_top_k, power,
                BN, TOP_K, SCORING, RENORMALIZE, PROTECT, UNIQUE,
            )  # fmt: skip
            request_high, request_low = request_high + fold(rows_high, BQ), request_low + fold(rows_low, BQ)
            request_count += fold(rows_count, BQ)
            if STATS:
                tl.store(stats + 2 * rows, top, mask=live)
                tl.store(stats + 2 * rows + 1, total, mask=live)
            done += EACH
        request_count = want_best(request_high, request_low, request_count, m_r, N, BN)
        high, low, count = high + request_high, low + request_low, count + request_count
        position += BQ
    return high, low, count
