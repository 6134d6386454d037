"""XShare: Algorithms 1 to 6, and price, chosen by what the policy sets."""

import torch

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
from xshare.methods.registry import register
from xshare.methods.step import Selection, Step
from xshare.policy import Policy


@register("xshare", "warm-up, then greedy by summed gating score: per batch, per request (mr) or per device (mg)")
def xshare(step: Step, policy: Policy) -> Selection:
    return Selection(keep=selected(step, policy))


def selected(step: Step, policy: Policy) -> torch.Tensor:
    """S, bool [..., N]."""
    u, own = step.sums(policy.score, policy.power), step.own(policy)
    if policy.request_budget:
        slots, R = step.layout.slots.expand(step.voting.shape), step.layout.num_slots
        fixed = step.fixed(policy.score, policy.power)
        S0 = per_request(fixed, own, step.voting, slots, R, policy.request_budget)
    else:
        S0 = warm_up(own, step.voting)
    if policy.device_budget is not None:
        fill = fill_level if policy.fill == "level" else fill_rounds
        return fill(u, S0, step.placement.devices, step.placement.num_devices, policy.device_budget)
    if policy.price is not None:
        return worth(u, S0, policy.price) if step.cost is None else worth_by_cost(u, S0, policy.price, step.cost)
    S = greedy(u, S0, policy.batch_budget) if policy.mass is None else greedy_mass(u, S0, policy.mass)
    return S if step.cost is None else snap(u, S, step.cost)
