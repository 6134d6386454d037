"""A random set of exactly the size XShare would choose: the control that shows what choosing well is worth."""

import torch
from torch import Tensor

from xshare.algorithms import rank
from xshare.methods.registry import register
from xshare.methods.step import Selection, Step
from xshare.methods.xshare import selected
from xshare.policy import FIELD_LETTERS, Knob, Knobs, Policy, check_has_budget

KNOBS = Knobs(
    fields=tuple(FIELD_LETTERS),
    params={"seed": Knob(int, "another seed, another set", low=0, default=0)},
    check=check_has_budget,
)


@register("random", "a random set of the size XShare's would have, as a control", knobs=KNOBS)
def random(step: Step, policy: Policy) -> Selection:
    size = selected(step, policy).sum(dim=-1, keepdim=True)
    if step.native is not None:  # as many as routing needs, drawn too: topped up, they would be the best
        size = size.clamp(min=step.native.top_k)
    return Selection(keep=rank(_noise(step.sums(), policy.param("seed"))) < size)


def _noise(u: Tensor, seed: int) -> Tensor:
    """A pseudo-random number an expert, fixed by the seed and the whole of u: splitmix64, int64 [..., N] -> same.

    Drawn from the data rather than from a generator, so that steps and layers differ, a rerun does not, and every rank
    of a group draws the same set.
    """
    index = torch.arange(u.shape[-1], device=u.device)
    key = _mix(u + index * GOLDEN).sum(dim=-1, keepdim=True) + seed % 2**62
    return _mix(_mix(key) + (index + 1) * GOLDEN)


GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # as a signed 64-bit number; products wrap round


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    x = (x ^ _shift(x, 27)) * (0x94D049BB133111EB - 2**64)
    return x.bitwise_xor(_shift(x, 31))


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right as if unsigned."""
    return x.bitwise_right_shift(bits).bitwise_and(2 ** (64 - bits) - 1)
