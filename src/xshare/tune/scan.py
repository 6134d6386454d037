"""Cheap signals first: what each policy would load and keep, from short runs, before any answer is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xshare.engines.base import Engine
from xshare.policy import Policy

SHARES = (0.0, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2)  # of N, as batch budgets


@dataclass(frozen=True)
class Candidate:
    policy: Policy
    budgets: tuple[int, ...] | None  # by layer
    active: tuple[float, ...]  # by layer
    native: tuple[float, ...]
    mass: tuple[float, ...]

    @property
    def name(self) -> str:
        if self.budgets is None:
            return str(self.policy)
        return f"k0={self.policy.warmup},m=[{','.join(map(str, self.budgets))}]"

    @property
    def mean_active(self) -> float:
        return sum(self.active) / len(self.active)

    @property
    def mean_native(self) -> float:
        return sum(self.native) / len(self.native)

    @property
    def mean_mass(self) -> float:
        return sum(self.mass) / len(self.mass)


def grid(num_experts: int, top_k: int) -> list[Policy]:
    """Warm-ups below k and batch budgets up to half of the experts."""
    budgets = list(dict.fromkeys(round(share * num_experts) for share in SHARES))
    return [Policy(warmup=k0, batch_budget=m) for k0 in range(1, min(3, top_k)) for m in budgets]


def look(
    engine: Engine, prompts: Sequence[Sequence[int]], policy: Policy, budgets: Sequence[int] | None, tokens: int
) -> Candidate:
    """A short run of one batch -> what it loaded and kept."""
    engine.use(policy, budgets)
    engine.run(prompts, limit=tokens, batch=len(prompts), to_the_end=True)
    stats = engine.stats()
    own = None if budgets is None else tuple(budgets)
    figures = (tuple(stats[name]) for name in ("experts_active", "experts_native", "mass_kept"))
    return Candidate(policy, own, *figures)


def scan(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    advance: Callable[[int], None] = lambda done: None,
) -> list[Candidate]:
    """The grid, and budgets by layer that load as much as some of it and keep more."""
    found = []
    for policy in grid(engine.about["experts"], engine.about["top_k"]):
        found.append(look(engine, prompts, policy, None, tokens))
        advance(1)
    one = [candidate for candidate in found if candidate.policy.warmup == 1]
    for like in one[1:-1:2]:
        budgets = allocate(one, like.mean_active)
        if len(set(budgets)) > 1:
            found.append(look(engine, prompts, like.policy, budgets, tokens))
        advance(1)
    return found


def looks(num_experts: int, top_k: int) -> int:
    """How often `scan` calls `advance`."""
    policies = grid(num_experts, top_k)
    return len(policies) + len([p for p in policies if p.warmup == 1][1:-1:2])


def allocate(family: Sequence[Candidate], target: float) -> list[int]:
    """Budgets by layer whose mean of active experts is at most `target`, keeping the most gating weight.

    `family` differs in m alone. Every layer takes the m at which one expert more keeps less than a price; the price is
    the same for all of them, and as low as the target allows. Layers differ in how much weight a budget keeps.
    """
    layers = range(len(family[0].active))

    def at(price: float) -> list[int]:
        return [max(range(len(family)), key=lambda i: family[i].mass[n] - price * family[i].active[n]) for n in layers]

    low, high = 0.0, 1.0  # an expert never keeps more than all
    for _ in range(40):
        price = (low + high) / 2
        loaded = sum(family[i].active[n] for n, i in enumerate(at(price))) / len(layers)
        low, high = (price, high) if loaded > target else (low, price)
    return [family[i].policy.batch_budget for i in at(high)]


def front(found: Sequence[Candidate]) -> list[Candidate]:
    """Those that no other beats in both experts and weight, fewest experts first."""
    best: list[Candidate] = []
    for candidate in sorted(found, key=lambda c: (c.mean_active, -c.mean_mass)):
        if not best or candidate.mean_mass > best[-1].mean_mass:
            best.append(candidate)
    return best
