"""XShare: Algorithms 1 to 6, and price; the policy's fields decide which of them run."""

from torch import Tensor

from xshare.algorithms import (
    fill_level,
    fill_rounds,
    greedy,
    greedy_mass,
    per_request,
    snap,
    warm_up,
    worth,
    worth_by_cost,
)
from xshare.batch import Placement
from xshare.methods.registry import register
from xshare.methods.step import Selection, Step
from xshare.policy import Policy


@register("xshare", "warm-up, then greedy by summed gating score: per batch, per request (mr) or per device (mg)")
def xshare(step: Step, policy: Policy) -> Selection:
    return Selection(keep=select_set(step, policy))


def select_set(step: Step, policy: Policy) -> Tensor:
    """S, bool [..., N]."""
    return choose_set(*sums_and_initial_set(step, policy), policy, step.placement, step.cost)


def sums_and_initial_set(step: Step, policy: Policy) -> tuple[Tensor, Tensor]:
    """The summed votes u, int64 [..., N], and the initial set S0, bool [..., N], which S always contains.

    For rows on several ranks, add the sums and unite the sets. All rows of a request must be on one rank.
    """
    u, own = step.sums(policy.score, policy.power), step.own(policy)
    if policy.request_budget:
        slots, R = step.layout.slots.expand(step.voting.shape), step.layout.num_slots
        fixed = step.fixed(policy.score, policy.power)
        return u, per_request(fixed, own, step.voting, slots, R, policy.request_budget)
    return u, warm_up(own, step.voting)


def choose_set(u: Tensor, S0: Tensor, policy: Policy, placement: Placement, cost: Tensor | None) -> Tensor:
    """S from the summed votes and the initial set, bool [..., N]."""
    if policy.device_budget is not None:
        fill = fill_level if policy.fill == "level" else fill_rounds
        return fill(u, S0, placement.devices, placement.num_devices, policy.device_budget)
    if policy.price is not None:
        return worth(u, S0, policy.price) if cost is None else worth_by_cost(u, S0, policy.price, cost)
    S = greedy(u, S0, policy.batch_budget) if policy.mass is None else greedy_mass(u, S0, policy.mass)
    return S if cost is None else snap(u, S, cost)
