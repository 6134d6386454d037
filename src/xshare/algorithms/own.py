"""A voting row's own experts W_i, which S always contains: its top-k0, what coverage adds, and its whole native top-k
if the row is protected."""

import torch
from torch import Tensor

from xshare.algorithms.greedy import ONE


def covering(ids: Tensor, weights: Tensor, rho: float, num_experts: int) -> Tensor:
    """Each row's best native experts until they hold rho of the row's native weight.

    int64 [..., n, k], float64 [..., n, k] -> bool [..., n, N]. Every row keeps at least the share rho of its own
    routing weight, whatever else is in the batch.
    """
    fixed = (weights * ONE).round().to(torch.int64)
    held = fixed.cumsum(-1) - fixed  # by the better experts of the row
    short = held.double() < rho * fixed.sum(-1, keepdim=True).double()
    if rho >= 1:
        short = torch.ones_like(short)  # the whole native top-k, with experts of weight 0
    zeros = torch.zeros(*ids.shape[:-1], num_experts, dtype=torch.bool, device=ids.device)
    return zeros.scatter_(-1, ids, short)
