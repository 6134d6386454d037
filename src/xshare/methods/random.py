"""A random set of exactly the size XShare would choose: the control that shows what choosing well is worth."""

import torch
from torch import Tensor

from xshare.algorithms import rank
from xshare.methods.registry import register
from xshare.methods.step import Selection, Step
from xshare.methods.xshare import select_set
from xshare.policy import FIELD_LETTERS, Knob, Knobs, Policy, check_combination
from xshare.splitmix import GOLDEN, as_int64, mix64_tensor

KNOBS = Knobs(
    fields=tuple(FIELD_LETTERS),
    params={"seed": Knob(int, "another seed, another set", low=0, default=0)},
    check=check_combination,
)


@register("random", "a random set of the size XShare's would have, as a control", knobs=KNOBS)
def random(step: Step, policy: Policy) -> Selection:
    size = select_set(step, policy).sum(dim=-1, keepdim=True)
    if step.native is not None:  # as many as routing needs, drawn too: topped up, they would be the best
        size = size.clamp(min=step.native.top_k)
    return Selection(keep=rank(_noise(step.sums(), policy.param("seed"))) < size)


def _noise(u: Tensor, seed: int) -> Tensor:
    """A pseudo-random number an expert, fixed by the seed and the whole of u: splitmix64, int64 [..., N] -> same.

    Drawn from the data rather than from a generator, so that steps and layers differ, a rerun does not, and every rank
    of a group draws the same set.
    """
    index = torch.arange(u.shape[-1], device=u.device)
    step = as_int64(GOLDEN)
    key = mix64_tensor(u + index * step).sum(dim=-1, keepdim=True) + seed % 2**62
    return mix64_tensor(mix64_tensor(key) + (index + 1) * step)
