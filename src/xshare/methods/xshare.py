"""XShare: Algorithms 1 to 6, chosen by which budgets the policy sets."""

import torch

from xshare.algorithms import fill_level, fill_rounds, greedy, greedy_mass, per_request, warm_up
from xshare.methods.registry import register
from xshare.methods.step import Selection, Step
from xshare.policy import Policy


@register("xshare", "warm-up, then greedy by summed gating score: per batch, per request (mr) or per device (mg)")
def xshare(step: Step, policy: Policy) -> Selection:
    return Selection(keep=selected(step, policy))


def selected(step: Step, policy: Policy) -> torch.Tensor:
    """S, bool [..., N]."""
    u, favourites = step.sums(policy.score), step.favourites(policy.warmup)
    if policy.request_budget:
        slots, R = step.layout.slots.expand(step.voting.shape), step.layout.num_slots
        S0 = per_request(step.fixed(policy.score), favourites, step.voting, slots, R, policy.request_budget)
    else:
        S0 = warm_up(favourites, step.voting)
    if policy.device_budget is not None:
        fill = fill_level if policy.fill == "level" else fill_rounds
        return fill(u, S0, step.placement.devices, step.placement.num_devices, policy.device_budget)
    if policy.mass is not None:
        return greedy_mass(u, S0, policy.mass)
    return greedy(u, S0, policy.batch_budget)
