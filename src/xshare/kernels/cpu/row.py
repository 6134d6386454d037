"""One row, compiled: its scores, its ranking, its native experts, and those that it is sure to keep."""

from math import exp, inf, isfinite, isnan, log

import numba
import numpy as np
from llvmlite.binding import ffi

from xshare.algorithms.greedy import ONE as VOTE
from xshare.router import ABSENT, LOWEST

# vLLM 0.32 reads the __dict__ of every object in every module. llvmlite's library answers any name, `__dict__` too,
# with a function, and vLLM breaks on it.
if isinstance(functions := getattr(ffi.lib, "_fntab", None), dict):
    functions.setdefault("__dict__", {})

HIGHEST = -LOWEST
ONE = float(VOTE)  # a vote of 1.0 as an integer
# Loops rather than array expressions, which take Numba ten times as long to compile.
jit = numba.njit(cache=True, nogil=True, error_model="numpy")


@jit
def usable(logits):
    """Whether a row can vote: no NaN, no +inf, and at least one value above -inf."""
    top = -inf
    for j in range(len(logits)):
        if isnan(logits[j]):
            return False
        top = max(top, logits[j])
    return isfinite(top)


@jit
def softmax(values, count):
    """Softmax of the first `count` values, in place; RouterSpec's, in the same order of operations."""
    top = -inf
    for j in range(count):
        top = max(top, values[j])
    total = 0.0
    for j in range(count):
        values[j] = exp(values[j] - top)
        total += values[j]
    for j in range(count):
        values[j] /= total


@jit
def sigmoid(x):
    """A softmax over (x, 0), as in RouterSpec."""
    top = max(x, 0.0)
    a, b = exp(x - top), exp(-top)
    return a / (a + b)


@jit
def log_sigmoid(x):
    top = max(x, 0.0)
    return x - top - log(exp(x - top) + exp(-top))


@jit
def score_row(logits, is_sigmoid, score):
    """RouterSpec.score of a usable row, into `score`."""
    if is_sigmoid:
        for j in range(len(logits)):
            score[j] = sigmoid(logits[j])
    else:
        for j in range(len(logits)):
            score[j] = logits[j]
        softmax(score, len(score))


@jit
def choose_row(logits, score, is_sigmoid, bias, choice):
    """RouterSpec.choice of a row, before the group rule, into `choice`. An empty bias means none."""
    for j in range(len(logits)):
        if not is_sigmoid:
            choice[j] = max(logits[j], LOWEST)
        elif len(bias) == 0:
            choice[j] = score[j]
        else:
            value = score[j] + bias[j]
            choice[j] = LOWEST if isnan(value) else min(max(value, LOWEST), HIGHEST)


@jit
def limit_groups(choice, groups, keep, limited):
    """RouterSpec.limit_groups: `limited` is ABSENT outside the `keep` best groups."""
    for j in range(len(choice)):
        limited[j] = choice[j]
    if groups == 1:
        return
    size = len(choice) // groups
    value = np.empty(groups)
    for g in range(groups):
        first, second = ABSENT, ABSENT
        for j in range(g * size, (g + 1) * size):
            if choice[j] > first:
                first, second = choice[j], first
            elif choice[j] > second:
                second = choice[j]
        if first == ABSENT:
            value[g] = ABSENT
        else:
            value[g] = max(first if second == ABSENT else first + second, LOWEST)
    for g in range(groups):
        ahead = 0
        for other in range(groups):
            ahead += value[other] > value[g] or (value[other] == value[g] and other < g)
        if ahead >= keep:
            for j in range(g * size, (g + 1) * size):
                limited[j] = ABSENT


@jit
def best_first(choice, count, ids):
    """The `count` best columns, ties to the lower, into `ids` -> how many exist; the other slots repeat the best."""
    filled = 0
    for j in range(len(choice)):
        value = choice[j]
        if value == ABSENT or (filled == count and value <= choice[ids[filled - 1]]):
            continue
        place = filled if filled < count else count - 1
        while place > 0 and value > choice[ids[place - 1]]:
            ids[place] = ids[place - 1]
            place -= 1
        ids[place] = j
        filled = min(filled + 1, count)
    for place in range(filled, count):
        ids[place] = ids[0] if filled else 0
    return filled


@jit
def weigh(logits, score, ids, real, is_sigmoid, renormalize, weights):
    """RouterSpec.weight of the chosen ids, into `weights`; the first `real` slots are real, the others get 0."""
    for t in range(len(ids)):
        if not renormalize:
            weights[t] = score[ids[t]] if t < real else 0.0
        elif t < real:
            x = logits[ids[t]]
            weights[t] = max(log_sigmoid(x) if is_sigmoid else x, LOWEST)
        else:
            weights[t] = 0.0
    if renormalize:
        softmax(weights, real)


@jit
def to_power(value, power):
    """value ** power by multiplication, so that every implementation rounds alike."""
    result = value
    for _ in range(power - 1):
        result *= value
    return result


@jit
def fixed(value):
    """A vote as an integer."""
    return np.int64(np.rint(value * ONE))


@jit
def mark_own(ranking, real, ids, weights, k0, rho, is_protected, own):
    """Add W_i to `own`: the row's best k0, what covers rho of its native weight, all its native experts if protected.

    `ranking`: the row's best columns, of which the first `real` exist. `ids`, `weights`: native experts, best first.
    """
    for t in range(min(k0, real)):
        own[ranking[t]] = True
    if rho >= 0:
        total = np.int64(0)
        for t in range(len(ids)):
            total += fixed(weights[t])
        held = np.int64(0)
        for t in range(len(ids)):
            if rho >= 1 or float(held) < rho * float(total):
                own[ids[t]] = True
            held += fixed(weights[t])
    if is_protected:
        for t in range(len(ids)):
            own[ids[t]] = True
