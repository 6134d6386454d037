"""One set S for rows on several ranks: each rank votes, the votes are summed, and every rank chooses S from the sums.

Votes are integers, so the sums do not depend on the order of addition. Every rank gets the same S, bit for bit: the one
that `route` gives for all rows together. All rows of a request must be on one rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xshare.algorithms import top_up
from xshare.batch import BatchLayout, Placement
from xshare.errors import PolicyError
from xshare.methods import Step
from xshare.methods.xshare import choose_set, sums_and_initial_set
from xshare.policy import Policy
from xshare.router import RouterSpec
from xshare.routing import Routing, fit_layout, prepare_step, route_prepared


def size_of_votes(num_experts: int) -> int:
    """The length of a rank's counts: per expert its votes, per expert how many ranks keep it whatever the others vote,
    and the number of voting rows."""
    return 2 * num_experts + 1


@dataclass(frozen=True)
class Vote:
    """What the rows of one rank vote for."""

    step: Step
    router: RouterSpec
    policy: Policy
    counts: Tensor  # int64 [size_of_votes]

    def routed(self, S: Tensor, dtype: torch.dtype = torch.float32) -> Routing:
        """The routing of this rank's rows inside S, bool [N]."""
        return route_prepared(self.step, self.router, self.policy, dtype, keep=S)


def vote(
    logits: Tensor,
    router: RouterSpec,
    policy: Policy,
    *,
    layout: BatchLayout | None = None,
    placement: Placement | None = None,
) -> Vote:
    """The votes of one rank's rows. `logits`: float [n, N]."""
    if policy.method != "xshare":
        raise PolicyError(f"method {policy.method!r} does not choose one set for rows in several places: use xshare")
    layout, placement = fit_layout(logits, layout, placement)
    step = prepare_step(logits, router, layout, placement)
    u, S0 = sums_and_initial_set(step, policy)
    return Vote(step, router, policy, torch.cat((u, S0.long(), step.voting.sum().reshape(1))))


def choose(
    counts: Tensor, router: RouterSpec, policy: Policy, placement: Placement | None = None, cost: Tensor | None = None
) -> Tensor:
    """S from the summed counts of all ranks. int64 [size_of_votes] -> bool [N]"""
    N = (len(counts) - 1) // 2
    u, S0, nobody = counts[:N], counts[N : 2 * N] > 0, counts[2 * N] == 0
    if placement is None:
        placement = Placement(torch.zeros(N, dtype=torch.int64, device=counts.device), 1)
    return top_up(choose_set(u, S0, policy, placement, cost), u, router.top_k) | nobody
