"""Price: in place of a budget, every expert pays for itself. And what experts cost where time is a staircase.

A cost table c[0..N] says what s experts cost on a machine, in units of one expert, float64 [N + 1], non-decreasing.
"""

import math

import torch
from torch import Tensor

from xshare.algorithms.greedy import ONE, outside, rank

SLACK = 0.25  # of one expert: a size that costs no more than this beyond another is on the same stair
MOST = 2**62  # no sum of votes reaches it


def worth(u: Tensor, S0: Tensor, lam: float) -> Tensor:
    """S0 plus every expert whose votes reach lam. Nothing is ranked."""
    return S0 | (u >= min(math.ceil(lam * ONE), MOST))


def worth_by_cost(u: Tensor, S0: Tensor, lam: float, cost: Tensor) -> Tensor:
    """S0 plus the best others in the order of greedy, as many as make the votes of S less lam * c[|S|] largest.

    Of equal sizes the smallest. c[s] = s is the plain price.
    """
    N = u.shape[-1]
    gain = outside(u, S0).sort(dim=-1, descending=True, stable=True).values.clamp(min=0)
    held = (u * S0).sum(-1, keepdim=True)
    votes = torch.cat((held, held + gain.cumsum(-1)), dim=-1)  # V: S0 and r others, [..., N + 1]
    added = torch.arange(N + 1, device=u.device)
    size = S0.sum(-1, keepdim=True) + added
    pays = (lam * cost * ONE).round().clamp(max=MOST).to(torch.int64)
    value = (votes - pays[size.clamp(max=N)]).masked_fill(size > N, torch.iinfo(torch.int64).min)
    return S0 | (rank(outside(u, S0)) < value.argmax(dim=-1, keepdim=True))  # the first of equals


def snap(u: Tensor, S: Tensor, cost: Tensor) -> Tensor:
    """S with the next experts in the order of greedy that have votes, as far as the stair it stands on reaches."""
    size = S.sum(-1, keepdim=True)
    edge = (cost <= cost[size].unsqueeze(-1) + SLACK).sum(-1) - 1  # the largest size of that cost, [..., 1]
    return S | ((rank(outside(u, S)) < edge - size) & (u > 0))
