"""A random set of exactly the size XShare would choose: a control that shows what the choice of experts is worth."""

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
    if step.native is not None:  # the k that routing needs are drawn here too: top-up would add the best experts
        size = size.clamp(min=step.native.top_k)
    return Selection(keep=rank(_noise(step.sums(), policy.param("seed"))) < size)


def _noise(u: Tensor, seed: int) -> Tensor:
    """A pseudo-random number per expert, by splitmix64 from the seed and all of u. int64 [..., N] -> int64 [..., N]

    It depends on the data instead of a generator's state: steps and layers differ, a rerun gives the same set, and
    every rank of a group draws the same set.
    """
    index = torch.arange(u.shape[-1], device=u.device)
    increment = as_int64(GOLDEN)
    key = mix64_tensor(u + index * increment).sum(dim=-1, keepdim=True) + seed % 2**62
    return mix64_tensor(mix64_tensor(key) + (index + 1) * increment)
