"""splitmix64: both forms give what its author published."""

import torch

from xshare.splitmix import GOLDEN, MASK, as_int64, mix64, mix64_tensor

FIRST = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # the generator's first numbers for seed 0


def test_the_published_numbers():
    states = [(i + 1) * GOLDEN & MASK for i in range(3)]
    assert [mix64(state) for state in states] == FIRST
    mixed = mix64_tensor(torch.tensor([as_int64(state) for state in states]))
    assert [value & MASK for value in mixed.tolist()] == FIRST
