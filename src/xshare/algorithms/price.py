"""Price: instead of a budget, an expert is added if its votes reach a price. And the cost of a set where time is a
staircase.

A cost table c[0..N] says what s experts cost on a machine, in units of one expert: float64 [N + 1], non-decreasing.
"""

import math

import torch
from torch import Tensor

from xshare.algorithms.greedy import ONE, outside, rank

SLACK = 0.25  # in units of one expert: sizes whose costs differ by at most this are on the same stair
MOST = 2**62  # no sum of votes reaches it


def worth(u: Tensor, S0: Tensor, lam: float) -> Tensor:
    """S0 plus every expert whose votes reach lam. No ranking is needed."""
    return S0 | (u >= min(math.ceil(lam * ONE), MOST))


def worth_by_cost(u: Tensor, S0: Tensor, lam: float, cost: Tensor) -> Tensor:
    """S0 plus the next experts in greedy order, as many as maximise (votes of S) - lam * c[|S|].

    Ties go to the smaller S. c[s] = s is the plain price.
    """
    N = u.shape[-1]
    gain = outside(u, S0).sort(dim=-1, descending=True, stable=True).values.clamp(min=0)
    held = (u * S0).sum(-1, keepdim=True)
    votes = torch.cat((held, held + gain.cumsum(-1)), dim=-1)  # of S0 and r added experts, r = 0 to N, [..., N + 1]
    added = torch.arange(N + 1, device=u.device)
    size = S0.sum(-1, keepdim=True) + added
    charge = (lam * cost * ONE).round().clamp(max=MOST).to(torch.int64)
    value = (votes - charge[size.clamp(max=N)]).masked_fill(size > N, torch.iinfo(torch.int64).min)
    return S0 | (rank(outside(u, S0)) < value.argmax(dim=-1, keepdim=True))  # argmax: the smallest r of a tie


def snap(u: Tensor, S: Tensor, cost: Tensor) -> Tensor:
    """S filled up to the end of its stair: plus the next experts in greedy order, as long as they have votes."""
    size = S.sum(-1, keepdim=True)
    edge = (cost <= cost[size].unsqueeze(-1) + SLACK).sum(-1) - 1  # the largest size on S's stair, [..., 1]
    return S | ((rank(outside(u, S)) < edge - size) & (u > 0))
