"""Protection costs no launch: as many with the code for it as without, whether anybody is protected or not."""

import pytest
import torch
from one_selection import TOP_4, fused, make

from xshare import Policy
from xshare.kernels import selection as kernel

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes with NaN as a GPU does


class Counted:
    """A kernel that counts its launches."""

    def __init__(self, native, launches):
        self.native, self.launches = native, launches

    def __getitem__(self, grid):
        self.launches.append(grid)
        return self.native[grid]


@pytest.mark.parametrize("shape", [(5, 16), (40, 33)])
def test_as_many_launches(shape, monkeypatch):
    launches = []
    for name in ("select_in_one_tile", "select_in_blocks"):
        monkeypatch.setattr(kernel, name, Counted(getattr(kernel, name), launches))
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    counts, sets = [], []
    for protects, protected in ((False, ()), (True, ()), (True, (1, 3))):
        launches.clear()
        selection = make(TOP_4, logits, protects=protects)
        launched, _ = fused(
            TOP_4, Policy.parse("k0=0,m=4"), logits, range(shape[0] + 1), selection, protected=protected
        )
        counts.append(len(launches))
        sets.append(set(launched.keep.nonzero().flatten().tolist()))
    assert counts[0] > 0
    assert counts == counts[:1] * 3
    assert sets[0] == sets[1] < sets[2]
