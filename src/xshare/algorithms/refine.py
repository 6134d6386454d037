"""Refinement: every row routes to its top-k inside S, by the model's own rules."""

import torch
from torch import Tensor

from xshare.algorithms.greedy import outside, rank
from xshare.router import ABSENT, RouterSpec


def top_up(S: Tensor, u: Tensor, k: int) -> Tensor:
    """S with at least k experts, so that every token can have as many as in native routing."""
    return S | (rank(outside(u, S)) < k - S.sum(-1, keepdim=True))


def refine(choice: Tensor, allowed: Tensor, router: RouterSpec, native: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The top-k of every row among `allowed`, best first. float64 [..., n, N], bool [..., n or 1, N] -> ids, real.

    With groups, the row's `native` experts (bool [..., n, N]) that are allowed keep their slots, without which coverage
    would not hold. For the free slots, groups are ranked by their experts in S. Without groups the top-k contains the
    native experts anyway. A row with fewer than k experts repeats its best one in the empty slots, which are not `real`
    and have weight 0: engines read every slot, so each must hold a valid id inside S.
    """
    inside = router.limit_groups(choice.masked_fill(~allowed, ABSENT))
    if native is not None and router.n_group > 1:
        kept = native & allowed
        free = inside.masked_fill(kept, ABSENT)
        added = (free > ABSENT) & (rank(free) < router.top_k - kept.sum(-1, keepdim=True))
        inside = choice.masked_fill(~(kept | added), ABSENT)
    best, ids = inside.sort(dim=-1, descending=True, stable=True)
    ids, real = ids[..., : router.top_k], best[..., : router.top_k] > ABSENT
    return torch.where(real, ids, ids[..., :1]), real
