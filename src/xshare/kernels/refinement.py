"""Refinement under a group rule, in one launch after the engine's own router. A row's native experts in S keep their
slots; the group rule fills the free slots from S. If the gate is closed, or S is all experts, the engine's ids and
weights stay as they are.
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
    """The group rule inside S, [1, BN]: a group is ranked by its two best choices, by one if S contains one of its
    experts, and last if S contains none."""
    SIZE: tl.constexpr = BN // GROUPS
    grouped = tl.reshape(choice, [GROUPS, SIZE])
    best = tl.max(grouped, axis=1)
    place = tl.arange(0, SIZE)[None, :]
    second = ABSENT
    if SIZE > 1:
        second = tl.max(tl.where(place == first_of(grouped, best, SIZE)[:, None], ABSENT, grouped), axis=1)
    value = tl.where(second > ABSENT, tl.maximum(best + second, LOWEST_FLOAT), best)  # [GROUPS]
    group = tl.arange(0, GROUPS)
    this, other = value[:, None], value[None, :]
    ahead = (other > this) | ((other == this) & (group[None, :] < group[:, None]))
    stays = tl.sum(ahead.to(tl.int32), axis=1) < KEEP_GROUPS
    return tl.reshape(tl.where(stays[:, None], grouped, ABSENT), [1, BN])


@triton.jit
def inside_set(choice, native, K: tl.constexpr, BN: tl.constexpr, GROUPS: tl.constexpr, KEEP_GROUPS: tl.constexpr):
    """A row's experts in S, bool [1, BN]: its native ones, then the best that the group rule allows, K in all.

    `choice` is ABSENT outside S; groups are ranked by their experts in S.
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
    """One program per row; `ids` holds the row's native experts. Empty slots repeat the row's best expert with weight
    0, because kernels read every slot.

    A row with unusable logits (NaN, +inf, or only -inf) is treated as zeros: equal weights inside S. The bias decides
    which experts of S it gets. The reference takes the column sums for that, which are no longer available here.
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
        # The log of the score, or the logit, which differs by a constant per row: right even if a score underflows.
        level = log_sigmoid(x) if SIGMOID else x
        level = tl.maximum(level, LOWEST_FLOAT)
        choice = score + tl.load(bias_ptr + cols, mask=inside, other=0.0)
        choice = tl.where(choice > LOWEST_FLOAT, choice, LOWEST_FLOAT)  # -inf and NaN rank last, but may be taken
        choice = tl.where(keep & inside, choice, ABSENT)
        if GROUPS > 1:  # without groups, the best inside S contain the native ones
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
            in_slot = slots == slot
            best_weight = tl.sum(tl.where(cols == best[:, None], level if RENORMALIZE else score, 0.0), axis=1)
            first = tl.sum(tl.where(slots == 0, chosen, 0), axis=1)
            chosen = tl.where(in_slot, tl.where(real, best, first)[:, None], chosen)
            weight = tl.where(in_slot & real[:, None], best_weight[:, None], weight)
            choice = tl.where(cols == best[:, None], ABSENT, choice)
        if RENORMALIZE:
            weight = tl.softmax(weight, 1)
        place = row * K + slots
        tl.store(ids + place, chosen.to(ids.dtype.element_ty), mask=slots < K)
        tl.store(weights + place, (weight * scale).to(weights.dtype.element_ty), mask=slots < K)
