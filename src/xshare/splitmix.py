"""splitmix64: neighbouring numbers come out unrelated, on every machine alike. For whole numbers, and for tensors."""

from torch import Tensor

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
FACTORS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST = 31


def mix64(x: int) -> int:
    """The finaliser: a number below 2^64 -> another."""
    x &= MASK
    for bits, factor in FACTORS:
        x = ((x ^ x >> bits) * factor) & MASK
    return x ^ x >> LAST


def mix64_tensor(x: Tensor) -> Tensor:
    """The same for int64 of any shape, taken as unsigned numbers: products wrap round."""
    for bits, factor in FACTORS:
        x = (x ^ _shifted(x, bits)) * as_int64(factor)
    return x.bitwise_xor(_shifted(x, LAST))


def as_int64(x: int) -> int:
    """A number below 2^64 as int64 has its bits."""
    return x - 2**64 if x >= 2**63 else x


def _shifted(x: Tensor, bits: int) -> Tensor:
    """To the right, as if unsigned."""
    return x.bitwise_right_shift(bits).bitwise_and(2 ** (64 - bits) - 1)
