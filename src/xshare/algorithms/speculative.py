"""Algorithms 3 and 4, speculative decoding: each request brings its own small set, and the batch takes their union.

A request's draft tokens are consecutive in one text and agree on experts far more than two requests do. So a budget per
request keeps more of their score than the same budget for the whole batch.
"""

import torch
from torch import Tensor

from xshare.algorithms.greedy import greedy


def per_request(fixed: Tensor, favourites: Tensor, voting: Tensor, slots: Tensor, num_slots: int, m_r: int) -> Tensor:
    """The union over requests of S_r: the own experts of the request's rows, plus the m_r best others by its own sums.

    fixed       int64 [..., n, N]   scores as integers, zero in rows that do not vote
    favourites  bool [..., n, N]    each row's own experts, its top-k0
    slots       int64 [..., n]      row -> request, numbered consecutively; a request's rows need not be contiguous
    -> bool [..., N]; `greedy(u, ., m)` on top of it completes Algorithm 4
    """

    def by_request(rows: Tensor) -> Tensor:  # int64 [..., n, x] -> [..., R, x], summed over each request's rows
        zeros = torch.zeros(*rows.shape[:-2], num_slots, rows.shape[-1], dtype=torch.int64, device=rows.device)
        return zeros.scatter_add_(-2, slots.unsqueeze(-1).expand(rows.shape), rows)

    S_r0 = by_request((favourites & voting.unsqueeze(-1)).long()) > 0
    S_r = greedy(by_request(fixed), S_r0, m_r)
    has_voter = by_request(voting.long().unsqueeze(-1)) > 0  # [..., R, 1]: a request without a voting row adds nothing
    return (S_r & has_voter).any(dim=-2)
