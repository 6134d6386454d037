"""One set for rows in several places: each place votes, votes are added up, and every place chooses from the totals.

Votes are integers, so the total is the same in whatever order it is added up, and so is S, bit for bit: it is the S
that `route` gives for all the rows together. Requests must not be torn apart over places.
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
    """Whole numbers: for each expert its votes and how many places want it whatever the others vote; and how many rows
    vote."""
    return 2 * num_experts + 1


@dataclass(frozen=True)
class Vote:
    """The rows of one place."""

    step: Step
    router: RouterSpec
    policy: Policy
    counts: Tensor  # int64 [size_of_votes]

    def routed(self, S: Tensor, dtype: torch.dtype = torch.float32) -> Routing:
        """The place's rows inside S, bool [N]."""
        return route_prepared(self.step, self.router, self.policy, dtype, keep=S)


def vote(
    logits: Tensor,
    router: RouterSpec,
    policy: Policy,
    *,
    layout: BatchLayout | None = None,
    placement: Placement | None = None,
) -> Vote:
    """float [n, N] -> what these rows bring."""
    if policy.method != "xshare":
        raise PolicyError(f"method {policy.method!r} does not choose one set for rows in several places: use xshare")
    layout, placement = fit_layout(logits, layout, placement)
    step = prepare_step(logits, router, layout, placement)
    u, S0 = sums_and_initial_set(step, policy)
    return Vote(step, router, policy, torch.cat((u, S0.long(), step.voting.sum().reshape(1))))


def choose(
    counts: Tensor, router: RouterSpec, policy: Policy, placement: Placement | None = None, cost: Tensor | None = None
) -> Tensor:
    """S from the counts of all places, added up. int64 [size_of_votes] -> bool [N]"""
    N = (len(counts) - 1) // 2
    u, S0, nobody = counts[:N], counts[N : 2 * N] > 0, counts[2 * N] == 0
    if placement is None:
        placement = Placement(torch.zeros(N, dtype=torch.int64, device=counts.device), 1)
    return top_up(choose_set(u, S0, policy, placement, cost), u, router.top_k) | nobody
