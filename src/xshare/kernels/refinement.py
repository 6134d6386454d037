"""Refinement under a group rule, one launch after the engine's own router: of each row's native experts those in S keep
their slots, and free slots are filled by what the group rule leaves of S. Where the gate is closed, or S is everything,
the engine's ids and weights stay as they are.
"""

import triton
import triton.language as tl

from xshare.kernels.control_words import Word
from xshare.kernels.ranking import first_of
from xshare.kernels.row_votes import LOWEST_FLOAT, log_sigmoid

GATE = tl.constexpr(int(Word.GATE))
ABSENT = tl.constexpr(float("-inf"))


@triton.jit
def limit_open_groups(choice, BN: tl.constexpr, GROUPS: tl.constexpr, KEEP_GROUPS: tl.constexpr):
    """A group is judged by its two best choices, by one if S left one, and comes last if it left none. [1, BN]"""
    SIZE: tl.constexpr = BN // GROUPS
    grouped = tl.reshape(choice, [GROUPS, SIZE])
    best = tl.max(grouped, axis=1)
    place = tl.arange(0, SIZE)[None, :]
    second = ABSENT
    if SIZE > 1:
        second = tl.max(tl.where(place == first_of(grouped, best, SIZE)[:, None], ABSENT, grouped), axis=1)
    value = tl.where(second > ABSENT, tl.maximum(best + second, LOWEST_FLOAT), best)  # [GROUPS]
    group = tl.arange(0, GROUPS)
    mine, other = value[:, None], value[None, :]
    before = (other > mine) | ((other == mine) & (group[None, :] < group[:, None]))
    stays = tl.sum(before.to(tl.int32), axis=1) < KEEP_GROUPS
    return tl.reshape(tl.where(stays[:, None], grouped, ABSENT), [1, BN])


@triton.jit
def inside_set(choice, native, K: tl.constexpr, BN: tl.constexpr, GROUPS: tl.constexpr, KEEP_GROUPS: tl.constexpr):
    """What a row takes of S, bool [1, BN]: its native experts, then the best that the group rule leaves, K in all.

    `choice` is ABSENT outside S; groups are judged by what S leaves of them.
    """
    taken = native & (choice > ABSENT)
    free = choice
    if GROUPS > 1:
        free = limit_open_groups(choice, BN, GROUPS, KEEP_GROUPS)
    free = tl.where(taken, ABSENT, free)
    left = K - tl.sum(tl.sum(taken.to(tl.int32), axis=1), axis=0)
    while left > 0:
        value = tl.max(free, axis=1)
        hit = (tl.arange(0, BN)[None, :] == first_of(free, value, BN)[:, None]) & (value > ABSENT)[:, None]
        taken = taken | hit
        free = tl.where(hit, ABSENT, free)
        left -= 1
    return taken


@triton.jit
def reroute_rows(
    logits, stride, bias_ptr, keep_ptr, control, weights, ids, scale,
    N: tl.constexpr, BN: tl.constexpr, K: tl.constexpr, SLOTS: tl.constexpr, SIGMOID: tl.constexpr,
    RENORMALIZE: tl.constexpr, GROUPS: tl.constexpr, KEEP_GROUPS: tl.constexpr,
):  # fmt: skip
    """A row a program; `ids` holds its native experts. Empty slots repeat the row's best with weight 0: kernels read
    every slot.

    A row that cannot be read (NaN, +inf, nothing but -inf) is taken as one of zeros: equal weights inside S. Which of S
    it gets the bias decides here, where the reference goes by the sums, which are gone by now.
    """
    row = tl.program_id(0)
    cols = tl.arange(0, BN)[None, :]
    inside = cols < N
    keep = tl.load(keep_ptr + cols, mask=inside, other=0) != 0
    if (tl.load(control + GATE) != 0) & (tl.sum(keep.to(tl.int32)) < N):
        x = tl.load(logits + row * stride + cols, mask=inside, other=ABSENT).to(tl.float32)
        top = tl.max(x, axis=1)
        broken = tl.sum((x != x).to(tl.int32), axis=1)
        usable = (broken == 0) & (top < float("inf")) & (top > ABSENT)
        x = tl.where(usable[:, None] | ~inside, x, 0.0)
        score = tl.sigmoid(x) if SIGMOID else tl.softmax(x, 1)
        # The logarithm of the score, or the logit, which differs by the same for all: right where a score underflows.
        level = log_sigmoid(x) if SIGMOID else x
        level = tl.maximum(level, LOWEST_FLOAT)
        choice = score + tl.load(bias_ptr + cols, mask=inside, other=0.0)
        choice = tl.where(choice > LOWEST_FLOAT, choice, LOWEST_FLOAT)  # -inf and NaN come last, but are there
        choice = tl.where(keep & inside, choice, ABSENT)
        if GROUPS > 1:  # without, the best inside S are those
            native = cols < 0
            for slot in tl.static_range(K):
                native = native | ((cols == tl.load(ids + row * K + slot)) & usable[:, None])
            choice = tl.where(inside_set(choice, native, K, BN, GROUPS, KEEP_GROUPS), choice, ABSENT)
        slots = tl.arange(0, SLOTS)[None, :]
        chosen, weight = tl.zeros([1, SLOTS], tl.int32), tl.full([1, SLOTS], ABSENT if RENORMALIZE else 0.0, tl.float32)
        for slot in tl.static_range(K):
            value = tl.max(choice, axis=1)
            best = first_of(choice, value, BN)  # [1]
            real = value > ABSENT
            here = slots == slot
            mine = tl.sum(tl.where(cols == best[:, None], level if RENORMALIZE else score, 0.0), axis=1)
            first = tl.sum(tl.where(slots == 0, chosen, 0), axis=1)
            chosen = tl.where(here, tl.where(real, best, first)[:, None], chosen)
            weight = tl.where(here & real[:, None], mine[:, None], weight)
            choice = tl.where(cols == best[:, None], ABSENT, choice)
        if RENORMALIZE:
            weight = tl.softmax(weight, 1)
        place = row * K + slots
        tl.store(ids + place, chosen.to(ids.dtype.element_ty), mask=slots < K)
        tl.store(weights + place, (weight * scale).to(weights.dtype.element_ty), mask=slots < K)
