"""The plain policy that loads as many experts as another policy does when it weighs costs.

More experts on the same stair are free and preserve more answers; fewer experts are faster with or without a staircase.
So a policy that weighs costs is compared with one of its own family that ignores costs and loads as many experts.
"""

from __future__ import annotations

from collections.abc import Callable

from xshare.bench.workload import Workload
from xshare.engines.base import Engine
from xshare.engines.client import ServerError
from xshare.errors import XShareError
from xshare.policy import Policy

CLOSE = 0.3  # experts by which two policies may differ and still count as equal
TURNS = 12  # bisection steps, at most
WIDE = 16.0  # largest factor by which a price is raised or lowered
SHORT = 48  # tokens per answer while experts are counted
COUNTED = range(-4, -1)  # repeats for counting; timed repeats use other prompts, because engines cache prefixes


def find_equal_policy(policy: Policy, target: float, num_experts: int, count: Callable[[Policy], float]) -> Policy:
    """The policy of the same family that loads `target` experts per step without costs: the first within CLOSE, or
    else the nearest. `count` returns how many experts a policy loads."""
    excess_by_policy: dict[Policy, float] = {}

    def excess(candidate: Policy) -> float:
        """Experts loaded beyond the target."""
        if candidate not in excess_by_policy:
            excess_by_policy[candidate] = count(candidate) - target
        return excess_by_policy[candidate]

    if abs(excess(policy)) <= CLOSE or policy.device_budget is not None:  # costs do not apply to device budgets
        return policy
    low, high = 0.0, 1.0
    for _ in range(TURNS):
        middle = (low + high) / 2
        candidate = policy_at(policy, middle, num_experts)
        if abs(excess(candidate)) <= CLOSE:
            return candidate
        low, high = (middle, high) if excess(candidate) < 0 else (low, middle)
    return min(excess_by_policy, key=lambda candidate: abs(excess_by_policy[candidate]))


def policy_at(policy: Policy, share: float, num_experts: int) -> Policy:
    """A policy of the same family, from the one that loads the fewest experts (share 0) to the most (share 1).

    What varies is the price around its current value, the mass up to 1, or the budget up to all experts."""
    values = policy.model_dump()
    if policy.price is not None:
        values["price"] = float(f"{policy.price * WIDE ** (1 - 2 * share):.3g}")
    elif policy.mass is not None:
        values["mass"] = float(f"{policy.mass + (1 - policy.mass) * share:.3g}")
    else:

        def raised(budget: int) -> int:
            return max(budget, min(budget + round(share * num_experts), num_experts))

        values["batch_budget"] = raised(policy.batch_budget)
        values["layer_budgets"] = {layer: raised(budget) for layer, budget in policy.layer_budgets.items()}
    return Policy(**values)


def measure_equal_policy(engine: Engine, policy: Policy, workload: Workload) -> Policy:
    """`find_equal_policy` on an engine with a staircase: experts are counted in short runs that are not timed."""
    max_tokens = min(workload.tokens, SHORT)
    runs = [(workload.prompts_of(engine, repeat), workload.arrivals_of(repeat)) for repeat in COUNTED]

    def count(candidate: Policy, cost: bool = False) -> float:
        engine.use(candidate, cost=cost)
        for prompts, arrivals in runs:
            engine.run(prompts, limit=max_tokens, batch=workload.batch, arrivals=arrivals, to_the_end=True)
        active = engine.stats().mean.get("experts_active")
        if active is None:
            raise XShareError(f"no step of {candidate} was counted, expected some: ask for more --tokens")
        return active

    try:
        engine.count_all(True)
    except ServerError:  # the server keeps its own sampling rate
        return find_equal_policy(policy, count(policy, cost=True), engine.about.experts, count)
    try:
        return find_equal_policy(policy, count(policy, cost=True), engine.about.experts, count)
    finally:
        engine.count_all(False)
