"""Whole steps, compiled: logits -> S, ids and weights inside S, and the step's figures."""

import numpy as np

from xshare.kernels.cpu.numbers import HALF, Figure, Real, Whole
from xshare.kernels.cpu.row import (
    best_first,
    choose_row,
    fixed,
    jit,
    limit_groups,
    mark_own,
    score_row,
    to_power,
    usable,
    weigh,
)
from xshare.kernels.cpu.sets import (
    add_best,
    add_mass,
    add_worth,
    add_worth_by_cost,
    fill_devices,
    in_order,
    size_of,
    snap,
    top_up,
)
from xshare.router import ABSENT

(
    TOP_K, SIGMOID, RENORMALIZE, RENORMALIZE_OURS, GROUPS, KEEP_GROUPS, WARMUP, BUDGET, REQUEST_BUDGET, DEVICE_BUDGET,
    ROUNDS, NUM_DEVICES, FULL, POWER, FULL_AFTER, POWER_AFTER, ALL_NATIVE,
) = map(int, Whole)  # fmt: skip
MASS, COVERAGE, PRICE, SCALE = map(int, Real)
NATIVE, SELECTED, ACTIVE, KEPT, BELOW_HALF, SMALLEST_KEPT, TOP1_KEPT, MAX_LOAD, EXCLUDED, SHARED = map(int, Figure)


@jit
def route_steps(
    all_logits, all_bias, all_requests, all_slots, num_slots, all_protected, all_devices, cost, whole, real,
    all_ids, all_weights, all_S, all_active, all_native, all_figures,
):  # fmt: skip
    """Route B independent steps.

    logits     float64 [B, n, N]
    bias       float64 [B or 1, N or 0]
    requests   [B or 1, n]; -1 does not vote
    slots      [B or 1, n]: requests as consecutive numbers below num_slots
    protected  bool [B or 1, n]
    devices    [B or 1, N]
    cost       float64 [N + 1 or 0]
    -> ids int64 and weights float64 [B, n, k]; S, active, active_native bool [B, N]; figures float64 [10, B]
    """
    n, N = all_logits.shape[1:]
    k, k0 = whole[TOP_K], whole[WARMUP]
    is_sigmoid, groups, keep_groups = whole[SIGMOID] != 0, whole[GROUPS], whole[KEEP_GROUPS]
    # A softmax over all experts would be most of the work, and is seldom needed.
    scored = is_sigmoid or whole[FULL] != 0 or whole[FULL_AFTER] != 0
    scored |= whole[RENORMALIZE] == 0 or whole[RENORMALIZE_OURS] == 0
    for b in range(len(all_logits)):
        logits, ids, weights = all_logits[b], all_ids[b], all_weights[b]
        S, active, active_native = all_S[b], all_active[b], all_native[b]
        bias, devices = all_bias[b if len(all_bias) > 1 else 0], all_devices[b if len(all_devices) > 1 else 0]
        requests, slots = all_requests[b if len(all_requests) > 1 else 0], all_slots[b if len(all_slots) > 1 else 0]
        protected = all_protected[b if len(all_protected) > 1 else 0]
        readable, voting = np.empty(n, np.bool_), np.empty(n, np.bool_)
        score, choice = np.zeros((n, N)), np.empty((n, N))
        native, native_weights = np.empty((n, k), np.int64), np.empty((n, k))
        own = np.zeros((n if whole[REQUEST_BUDGET] else 1, N), np.bool_)  # per row, or one line for all rows
        limited, ranking = np.empty(N), np.empty(max(k, k0), np.int64)
        excluded = 0
        for i in range(n):
            readable[i] = usable(logits[i])
            voting[i] = readable[i] and requests[i] >= 0
            excluded += requests[i] >= 0 and not readable[i]
            if not readable[i]:
                continue
            if scored:
                score_row(logits[i], is_sigmoid, score[i])
            choose_row(logits[i], score[i], is_sigmoid, bias, choice[i])
            limit_groups(choice[i], groups, keep_groups, limited)
            real_count = best_first(limited, len(ranking), ranking)
            for t in range(k):
                native[i, t] = ranking[t]
            renormalize = whole[RENORMALIZE] != 0
            weigh(logits[i], score[i], native[i], min(real_count, k), is_sigmoid, renormalize, native_weights[i])
            if voting[i]:
                row_own = own[i if whole[REQUEST_BUDGET] else 0]
                mark_own(ranking, real_count, native[i], native_weights[i], k0, real[COVERAGE], protected[i], row_own)
        u = sums(score, native, native_weights, voting, whole[FULL] != 0, whole[POWER])
        if whole[REQUEST_BUDGET]:
            by_request(score, native, native_weights, voting, own, slots, num_slots, whole, S)
        else:
            for j in range(N):
                S[j] = own[0, j]
        choose(u, S, devices, cost, whole, real)
        if whole[FULL_AFTER] != whole[FULL] or whole[POWER_AFTER] != whole[POWER]:
            u = sums(score, native, native_weights, voting, whole[FULL_AFTER] != 0, whole[POWER_AFTER])
        top_up(u, S, k)
        voters, all_readable = 0, True
        for i in range(n):
            voters += voting[i]
            all_readable &= readable[i]
        for j in range(N):
            S[j] |= voters == 0  # no row votes: routing is native
            active[j] = active_native[j] = False
        spare, spares = ranking, 0
        if not all_readable:  # rows with unusable logits go to the best of S
            outside = np.empty(N, np.bool_)
            for j in range(N):
                outside[j] = not S[j]
            spare = in_order(u, outside)
            spares = min(k, len(spare))
        for i in range(n):
            if not readable[i]:
                for t in range(k):
                    ids[i, t] = spare[t if t < spares else 0]
                    weights[i, t] = real[SCALE] * (1 / spares) if t < spares else 0.0
                continue
            refine(
                logits[i], score[i], choice[i], S, native[i], native_weights[i], whole, limited, ids[i], weights[i]
            )  # fmt: skip
            # A rival may have its own weight rule inside S; a protected row keeps its native weights.
            if protected[i] and voting[i] and whole[RENORMALIZE] != whole[RENORMALIZE_OURS]:
                for t in range(k):
                    ids[i, t], weights[i, t] = native[i, t], native_weights[i, t]
            for t in range(k):
                weights[i, t] *= real[SCALE]
                if voting[i]:
                    active[ids[i, t]] = True
                    active_native[native[i, t]] = True
        report(native, native_weights, voting, protected, S, devices, whole[NUM_DEVICES], all_figures, b)
        all_figures[NATIVE, b], all_figures[ACTIVE, b] = size_of(active_native), size_of(active)
        all_figures[SELECTED, b], all_figures[EXCLUDED, b] = size_of(S), excluded


@jit
def sums(score, native, native_weights, voting, full, power):
    """u, the votes of the voting rows, int64 [N]."""
    u = np.zeros(score.shape[1], np.int64)
    for i in range(len(voting)):
        if voting[i]:
            add_votes(u, score[i], native[i], native_weights[i], full, power)
    return u


@jit
def add_votes(u, score, native, native_weights, full, power):
    """Add one row's votes to u."""
    if full:
        for j in range(len(u)):
            u[j] += fixed(to_power(score[j], power))
    else:
        for t in range(len(native)):
            u[native[t]] += fixed(to_power(native_weights[t], power))


@jit
def by_request(score, native, native_weights, voting, own, slots, num_slots, whole, S):
    """Algorithm 4's first half: S is the union over requests of the rows' own experts and the m_r best others."""
    N = score.shape[1]
    u, request_set = np.zeros((num_slots, N), np.int64), np.zeros((num_slots, N), np.bool_)
    has_voter = np.zeros(num_slots, np.bool_)
    for i in range(len(voting)):
        if voting[i]:
            has_voter[slots[i]] = True
            for j in range(N):
                request_set[slots[i], j] |= own[i, j]
            add_votes(u[slots[i]], score[i], native[i], native_weights[i], whole[FULL] != 0, whole[POWER])
    for j in range(N):
        S[j] = False
    for r in range(num_slots):
        if has_voter[r]:
            add_best(u[r], request_set[r], whole[REQUEST_BUDGET])
            for j in range(N):
                S[j] |= request_set[r, j]


@jit
def choose(u, S, devices, cost, whole, real):
    """S0 -> S, by the policy's fields."""
    if whole[DEVICE_BUDGET] >= 0:
        fill_devices(u, S, devices, whole[NUM_DEVICES], whole[DEVICE_BUDGET], whole[ROUNDS] != 0)
    elif real[PRICE] >= 0:
        if len(cost):
            add_worth_by_cost(u, S, real[PRICE], cost)
        else:
            add_worth(u, S, real[PRICE])
    else:
        if real[MASS] >= 0:
            add_mass(u, S, real[MASS])
        else:
            add_best(u, S, whole[BUDGET])
        if len(cost):
            snap(u, S, cost)


@jit
def refine(logits, score, choice, S, native, native_weights, whole, inside, ids, weights):
    """The row's top-k inside S, best first, into `ids`, and their weights. `inside`: scratch memory [N]."""
    k, groups = whole[TOP_K], whole[GROUPS]
    kept = 0
    for t in range(k):
        kept += S[native[t]]
    if whole[ALL_NATIVE] or (kept == k and whole[RENORMALIZE] == whole[RENORMALIZE_OURS]):  # S has all of them
        for t in range(k):
            ids[t], weights[t] = native[t], native_weights[t]
        return
    masked = np.empty(len(S))
    for j in range(len(S)):
        masked[j] = choice[j] if S[j] else ABSENT
    limit_groups(masked, groups, whole[KEEP_GROUPS], inside)
    if groups > 1:  # native experts in S keep their slots; others fill the free slots
        for t in range(k):
            inside[native[t]] = ABSENT
        available = best_first(inside, k, ids)
        for j in range(len(S)):
            inside[j] = ABSENT
        for t in range(min(available, k - kept)):
            inside[ids[t]] = choice[ids[t]]
        for t in range(k):
            if S[native[t]]:
                inside[native[t]] = choice[native[t]]
    real = best_first(inside, k, ids)
    weigh(logits, score, ids, real, whole[SIGMOID] != 0, whole[RENORMALIZE_OURS] != 0, weights)


@jit
def report(native, native_weights, voting, protected, S, devices, num_devices, figures, b):
    """The figures of routing.Report on the voting rows' native weight."""
    kept_all, total_all, below, smallest, best, rows = 0.0, 0.0, 0, 1.0, 0, 0
    kept_shared, shared = 0.0, 0.0
    for i in range(len(voting)):
        if not voting[i]:
            continue
        kept, total = 0.0, 0.0
        for t in range(native.shape[1]):
            total += native_weights[i, t]
            if S[native[i, t]]:
                kept += native_weights[i, t]
        share = kept / total if total > 0 else 1.0
        kept_all, total_all, rows = kept_all + kept, total_all + total, rows + 1
        if not protected[i]:
            kept_shared, shared = kept_shared + kept, shared + total
        below += share < HALF
        smallest = min(smallest, share)
        best += S[native[i, 0]]
    figures[KEPT, b] = kept_all / total_all if total_all > 0 else 1.0
    figures[SHARED, b] = kept_shared / shared if shared > 0 else 1.0
    figures[BELOW_HALF, b] = below / max(rows, 1)
    figures[SMALLEST_KEPT, b] = smallest
    figures[TOP1_KEPT, b] = best / rows if rows else 1.0
    load = np.zeros(num_devices, np.int64)
    for j in range(len(S)):
        load[devices[j]] += S[j]
    most = 0
    for g in range(num_devices):
        most = max(most, load[g])
    figures[MAX_LOAD, b] = most


@jit
def settle_rows(S, native_weights, native_ids, rounding, weights, ids, new_weights, new_ids):
    """Write rows [B, n, k] in the model's own type. A row whose native experts are all in S, and whose weights equal
    the model's up to `rounding`, gets the model's exact ids and weights. So S = E changes nothing, even where the model
    breaks ties differently."""
    B, n, k = ids.shape
    a, b = np.empty(k), np.empty(k)
    for step in range(B):
        for i in range(n):
            same = True
            for t in range(k):
                same &= S[step, native_ids[step, i, t]]
                a[t], b[t] = weights[step, i, t], native_weights[step, i, t]
            if same:
                a.sort()
                b.sort()
                for t in range(k):
                    same &= abs(a[t] - b[t]) <= rounding * b[t]
            for t in range(k):
                new_weights[step, i, t] = native_weights[step, i, t] if same else weights[step, i, t]
                new_ids[step, i, t] = native_ids[step, i, t] if same else ids[step, i, t]


@jit
def route_one(
    logits, bias, requests, slots, num_slots, protected, devices, cost, whole, real,
    native_weights, native_ids, rounding, new_weights, new_ids, sets, figures, sums,
):  # fmt: skip
    """Route and settle a single step in one call: logits [n, N] and the model's weights and ids [n, k], in their own
    types -> new_weights, new_ids; sets [3, 1, N]: S, active, active_native; figures [10, 1], also added to sums [10].
    The other arguments are those of `route_steps`."""
    n, N = logits.shape
    k = whole[TOP_K]
    rows = np.empty((1, n, N))
    for i in range(n):
        for j in range(N):
            rows[0, i, j] = logits[i, j]
    ids, weights = np.empty((1, n, k), np.int64), np.empty((1, n, k))
    route_steps(
        rows, bias, requests, slots, num_slots, protected, devices, cost, whole, real,
        ids, weights, sets[0], sets[1], sets[2], figures,
    )  # fmt: skip
    shape = (1, n, k)
    settle_rows(
        sets[0], native_weights.reshape(shape), native_ids.reshape(shape), rounding, weights, ids,
        new_weights.reshape(shape), new_ids.reshape(shape),
    )  # fmt: skip
    for figure in range(len(sums)):
        sums[figure] += figures[figure, 0]
