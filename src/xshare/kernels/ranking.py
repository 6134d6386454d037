"""The fused selection's walk down a row's ranking: the row's best experts one after another, by integer keys."""

import triton
import triton.language as tl

NOT_THERE, REMOVED = tl.constexpr(-2139095041), tl.constexpr(-2147483648)  # keys of -inf, and of removed entries


@triton.jit
def first_of(x, value, BN: tl.constexpr):
    """The lowest column of each row that holds `value`: one integer instruction per warp, where argmax takes forty."""
    return tl.min(tl.where(x == value[:, None], tl.arange(0, BN)[None, :], BN), axis=1)


@triton.jit
def as_key(choice, UNIQUE: tl.constexpr):
    """float32 [BR, BN] -> int32 keys in the same order: a warp finds its largest integer in one instruction, where
    floats take forty. UNIQUE, for values that were bfloat16: a key contains its column too, lower columns larger."""
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
    """The largest key of each row and its column, [BR]; ties go to the lower column. For unique keys the column is not
    needed, and the key is returned in its place."""
    most = tl.max(left, axis=1)
    return most, column_of(left, most, BN, UNIQUE)


@triton.jit
def without(left, most, at, BN: tl.constexpr, UNIQUE: tl.constexpr):
    """Keys with the one found last removed."""
    if UNIQUE:
        return tl.where(left < most[:, None], left, REMOVED)
    else:
        return tl.where(tl.arange(0, BN)[None, :] == at[:, None], REMOVED, left)


@triton.jit
def down_to(key, most, at, BN: tl.constexpr, UNIQUE: tl.constexpr):
    """Each row's experts from its best down to key `most` in column `at`, bool [BR, BN]."""
    if UNIQUE:
        above = key >= most[:, None]
    else:
        cols = tl.arange(0, BN)[None, :]
        above = (key > most[:, None]) | ((key == most[:, None]) & (cols <= at[:, None]))
    return above & (key > NOT_THERE)


@triton.jit
def best_of(key, TOP_K: tl.constexpr, BN: tl.constexpr):
    """Each row's TOP_K by key, bool [BR, BN]"""
    most, at = best_left(key, BN, False)
    left = key
    for _ in tl.static_range(1, TOP_K):
        left = without(left, most, at, BN, False)
        most, at = best_left(left, BN, False)
    return down_to(key, most, at, BN, False)
