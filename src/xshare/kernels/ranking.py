"""The fused selection's walk down a row's ranking: its best experts one after another, by integer keys."""

import triton
import triton.language as tl

NOT_THERE, REMOVED = tl.constexpr(-2139095041), tl.constexpr(-2147483648)  # keys of -inf, and of what was taken


@triton.jit
def first_of(x, value, BN: tl.constexpr):
    """The lowest column of each row that holds `value`: one integer instruction a warp, where an argmax takes forty."""
    return tl.min(tl.where(x == value[:, None], tl.arange(0, BN)[None, :], BN), axis=1)


@triton.jit
def as_key(choice, UNIQUE: tl.constexpr):
    """float32 [BR, BN] -> int32 in the same order: a warp finds its largest integer in one instruction, where floats
    take forty. UNIQUE, for values that were bfloat16: the column is in it too, the lower the larger."""
    bits = (choice + 0.0).to(tl.int32, bitcast=True)  # -0 is 0
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    if UNIQUE:
        key = (key & -65536) | (65535 - tl.arange(0, choice.shape[1]))[None, :]
    return key


@triton.jit
def as_value(key, UNIQUE: tl.constexpr):
    bits = key ^ ((key >> 31) & 0x7FFFFFFF)
    if UNIQUE:
        bits = bits & -65536
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def column_of(left, most, BN: tl.constexpr, UNIQUE: tl.constexpr):
    at = most
    if not UNIQUE:
        at = first_of(left, most, BN)
    return at


@triton.jit
def best_left(left, BN: tl.constexpr, UNIQUE: tl.constexpr):
    """The largest key of each row -> its value and column, [BR]. Of equals the lowest column comes first. Unique keys
    need no column, and none is looked for."""
    most = tl.max(left, axis=1)
    return most, column_of(left, most, BN, UNIQUE)


@triton.jit
def without(left, most, at, BN: tl.constexpr, UNIQUE: tl.constexpr):
    """Keys without the one that was found last."""
    if UNIQUE:
        return tl.where(left < most[:, None], left, REMOVED)
    else:
        return tl.where(tl.arange(0, BN)[None, :] == at[:, None], REMOVED, left)


@triton.jit
def down_to(key, most, at, BN: tl.constexpr, UNIQUE: tl.constexpr):
    """Each row's experts from its best to that one, bool [BR, BN]."""
    if UNIQUE:
        found = key >= most[:, None]
    else:
        cols = tl.arange(0, BN)[None, :]
        found = (key > most[:, None]) | ((key == most[:, None]) & (cols <= at[:, None]))
    return found & (key > NOT_THERE)


@triton.jit
def best_of(key, TOP_K: tl.constexpr, BN: tl.constexpr):
    """Each row's TOP_K by key, bool [BR, BN]"""
    most, at = best_left(key, BN, False)
    left = key
    for _ in tl.static_range(1, TOP_K):
        left = without(left, most, at, BN, False)
        most, at = best_left(left, BN, False)
    return down_to(key, most, at, BN, False)
