"""A voting row's own experts W_i, which S holds whatever the others vote for: its top-k0, what coverage adds, and all
of its native top-k where it is protected."""

import torch
from torch import Tensor

from xshare.algorithms.greedy import ONE


def covering(ids: Tensor, weights: Tensor, rho: float, num_experts: int) -> Tensor:
    """Each row's native experts, best first, as long as those before hold less than rho of the row's native weight.

    int64 [..., n, k], float64 [..., n, k] -> bool [..., n, N]. The last of them brings the row to rho, so every row
    keeps at least that share of its own routing weight, whoever its neighbours are.
    """
    fixed = (weights * ONE).round().to(torch.int64)
    held = fixed.cumsum(-1) - fixed  # by the experts before
    short = held.double() < rho * fixed.sum(-1, keepdim=True).double()
    if rho >= 1:
        short = torch.ones_like(short)  # the whole native top-k, experts of weight 0 too
    zeros = torch.zeros(*ids.shape[:-1], num_experts, dtype=torch.bool, device=ids.device)
    return zeros.scatter_(-1, ids, short)
