"""The selection of vLLM pull request 35551: the experts with the largest summed raw logits.

Three differences from the paper are kept: it sums logits instead of probabilities; the budget is the size of the whole
set; and a token's warm-up experts are open to that token alone, so they are not shared.
"""

import torch

from xshare.algorithms import best
from xshare.errors import PolicyError
from xshare.methods.registry import register
from xshare.methods.step import Selection, Step
from xshare.policy import Knobs, Policy

# Logits as integers, so that sums do not depend on the order of rows: 2^-32 steps, room for 2^14 rows of +-2^16.
STEP, LIMIT = 2.0**32, 2.0**16


def _check(policy: Policy) -> None:
    if policy.batch_budget < 1:
        raise PolicyError("batch_budget (m) must be at least 1 for method 'logit-sum', as in logit-sum:m=24")


@register(
    "logit-sum",
    "top m experts by summed raw logits; k0 opens to their own token only (vLLM pull request 35551)",
    knobs=Knobs(fields=("warmup", "batch_budget"), check=_check),
    needs="logits",
)
def logit_sum(step: Step, policy: Policy) -> Selection:
    assert step.logits is not None
    assert step.native is not None
    fixed = (step.logits.clamp(-LIMIT, LIMIT) * STEP).round().to(torch.int64) * step.voting.unsqueeze(-1)
    pool = best(fixed.sum(dim=-2), max(policy.batch_budget, step.native.top_k))  # [..., N]
    if not policy.warmup:
        return Selection(keep=pool)
    own = step.favourites(policy.warmup)  # [..., n, N]
    return Selection(keep=pool | step.union(own), rows=pool.unsqueeze(-2) | own)
