"""The plain policy that loads as many experts as another does by its costs: what a staircase gains beside it.

More experts on a stair are free, and keep more of the answers; fewer experts are faster anyway. So a policy by its
costs is held against one of the same family that loads as many without looking at costs.
"""

from __future__ import annotations

from collections.abc import Callable

from xshare.bench.workload import Workload
from xshare.engines.base import Engine
from xshare.engines.client import ServerError
from xshare.errors import XShareError
from xshare.policy import Policy

CLOSE = 0.3  # experts: as many
TURNS = 12  # that are looked at, at most
WIDE = 16.0  # times as high or low a price may become
SHORT = 48  # tokens of an answer, in which experts are counted
COUNTED = range(-4, -1)  # repeats, none of those that are timed: an engine may remember prompts it has read


def equal(policy: Policy, wanted: float, num_experts: int, count: Callable[[Policy], float]) -> Policy:
    """One of the policy's family, without costs, whose steps load `wanted` experts on average: the first that comes
    within CLOSE, or the nearest. `count` says how many a policy loads."""
    known: dict[Policy, float] = {}

    def off(which: Policy) -> float:
        """By how many experts it loads more."""
        if which not in known:
            known[which] = count(which) - wanted
        return known[which]

    if abs(off(policy)) <= CLOSE or policy.device_budget is not None:  # costs change nothing on devices
        return policy
    low, high = 0.0, 1.0
    for _ in range(TURNS):
        middle = (low + high) / 2
        which = more(policy, middle, num_experts)
        if abs(off(which)) <= CLOSE:
            return which
        low, high = (middle, high) if off(which) < 0 else (low, middle)
    return min(known, key=lambda which: abs(known[which]))


def more(policy: Policy, share: float, num_experts: int) -> Policy:
    """The policy's family, from the one that loads the fewest (share 0) to the one that loads the most (1): prices
    around its own, a mass up to all, or a budget from its own up to all experts."""
    own = policy.model_dump()
    if policy.price is not None:
        own["price"] = float(f"{policy.price * WIDE ** (1 - 2 * share):.3g}")
    elif policy.mass is not None:
        own["mass"] = float(f"{policy.mass + (1 - policy.mass) * share:.3g}")
    else:

        def raised(budget: int) -> int:
            return max(budget, min(budget + round(share * num_experts), num_experts))

        own["batch_budget"] = raised(policy.batch_budget)
        own["layer_budgets"] = {layer: raised(budget) for layer, budget in policy.layer_budgets.items()}
    return Policy(**own)


def equals_of(engine: Engine, policy: Policy, workload: Workload) -> Policy:
    """The same on an engine with a staircase: counted in short runs that nobody times."""
    limit = min(workload.tokens, SHORT)
    asked = [(workload.prompts_of(engine, repeat), workload.arrivals_of(repeat)) for repeat in COUNTED]

    def count(which: Policy, cost: bool = False) -> float:
        engine.use(which, cost=cost)
        for prompts, arrivals in asked:
            engine.run(prompts, limit=limit, batch=workload.batch, arrivals=arrivals, to_the_end=True)
        active = engine.stats().mean.get("experts_active")
        if active is None:
            raise XShareError(f"no step of {which} was counted, expected some: ask for more --tokens")
        return active

    try:
        engine.count_all(True)
    except ServerError:  # it counts as often as it was told to
        return equal(policy, count(policy, cost=True), engine.about.experts, count)
    try:
        return equal(policy, count(policy, cost=True), engine.about.experts, count)
    finally:
        engine.count_all(False)
