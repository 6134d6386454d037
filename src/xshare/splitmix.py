"""splitmix64, a hash that gives unrelated outputs for neighbouring inputs, the same on every machine."""

from torch import Tensor

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
FACTORS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST = 31


def mix64(x: int) -> int:
    """splitmix64's finaliser: a number below 2^64 -> a number below 2^64."""
    x &= MASK
    for bits, factor in FACTORS:
        x = ((x ^ x >> bits) * factor) & MASK
    return x ^ x >> LAST


def mix64_tensor(x: Tensor) -> Tensor:
    """mix64 for int64 of any shape, read as unsigned numbers; products wrap around."""
    for bits, factor in FACTORS:
        x = (x ^ _shift_right(x, bits)) * as_int64(factor)
    return x.bitwise_xor(_shift_right(x, LAST))


def as_int64(x: int) -> int:
    """The int64 with the same bits as a number below 2^64."""
    return x - 2**64 if x >= 2**63 else x


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """A logical shift to the right: x is read as unsigned."""
    return x.bitwise_right_shift(bits).bitwise_and(2 ** (64 - bits) - 1)
