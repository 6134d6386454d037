"""Cheap signals first: what each policy would load, keep and change, from short runs, before any answer is judged.

Gating weight kept is the cheapest, and not enough: a token that loses its second expert may be lost while the batch
keeps nearly all of its weight. Where the engine can be forced, KL from native's next tokens says more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from xshare.engines.base import Engine
from xshare.errors import XShareError
from xshare.policy import Policy, Score

DIVIDED = (1, 2)  # warm-ups whose budgets are divided among layers, too: beyond them little is left to divide
SOME = slice(1, -1, 2)  # of a family: those that budgets by layer are to load as much as
SHARES = (0.0, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2)  # of N, as batch budgets
REQUESTED = (1, 2, 4, 6, 8)  # request budgets, where a request has several rows


@dataclass(frozen=True)
class Candidate:
    policy: Policy
    active: tuple[float, ...]  # by layer
    native: tuple[float, ...]
    mass: tuple[float, ...]
    kl: float | None = None  # of native's next tokens from the policy's, in nats a token; None where it is not known

    @property
    def harm(self) -> float:
        """What orders candidates: less is better."""
        return 1 - self.mean_mass if self.kl is None else self.kl

    @property
    def name(self) -> str:
        return str(self.policy)

    @property
    def mean_active(self) -> float:
        return sum(self.active) / len(self.active)

    @property
    def mean_native(self) -> float:
        return sum(self.native) / len(self.native)

    @property
    def mean_mass(self) -> float:
        return sum(self.mass) / len(self.mass)


def grid(num_experts: int, top_k: int, drafts: int = 0, score: Score = "topk") -> list[Policy]:
    """Warm-ups below k and batch budgets up to half of the experts; with drafts request budgets, too."""
    budgets = list(dict.fromkeys(round(share * num_experts) for share in SHARES))
    warmups = range(1, min(4, top_k))
    found = [Policy(warmup=k0, batch_budget=m, score=score) for k0 in warmups for m in budgets]
    requested = [(k0, mr) for k0 in warmups for mr in REQUESTED if drafts]
    return found + [Policy(warmup=k0, request_budget=mr, score=score) for k0, mr in requested]


def family_of(policies: Sequence[Policy], k0: int) -> list[Policy]:
    """Those that are alike but for m."""
    return [policy for policy in policies if policy.warmup == k0 and not policy.request_budget]


def look(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    policy: Policy,
    tokens: int,
) -> Candidate:
    """One batch decodes native's answers, or so many tokens where it cannot be forced -> what it loaded and kept."""
    engine.use(policy)
    kl = None
    if answers:
        forced = engine.diverge(prompts, answers, len(prompts))
        kl = forced.kl / forced.tokens
    else:
        engine.run(prompts, limit=tokens, batch=len(prompts), to_the_end=True)
    stats = engine.stats()
    if not stats.mean.get("experts_active"):
        raise XShareError(f"no step of {policy} was counted: its answers are too short, or the engine routes natively")
    active, native, mass = (tuple(stats.by_layer[name]) for name in ("experts_active", "experts_native", "mass_kept"))
    return Candidate(policy, active, native, mass, kl)


def scan(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    advance: Callable[[int], None] = lambda done: None,
    score: Score = "topk",
    known: Sequence[Candidate] = (),
    keep: Callable[[Candidate], None] = lambda found: None,
) -> list[Candidate]:
    """The grid, and budgets by layer that load as much as some of it and keep more.

    `known` were looked at before; `keep` gets every new one.
    """
    there = {each.policy: each for each in known}
    engine.count_all(True)

    @cache
    def forced() -> tuple[Sequence[Sequence[int]], list[list[int]]]:
        """Prompts with native's answers, or none of them where the engine cannot be forced."""
        if not engine.forces:
            return prompts, []
        engine.use(None)
        all_ = [answer.tokens for answer in engine.run(prompts, limit=tokens, batch=len(prompts)).answers]
        long = [i for i, answer in enumerate(all_) if len(answer) > 1]  # the first token comes with the prompt
        return ([prompts[i] for i in long], [all_[i] for i in long]) if long else (prompts, [])

    found: list[Candidate] = []

    def add(policy: Policy) -> None:
        if policy in there:
            found.append(there[policy])
        else:
            found.append(look(engine, *forced(), policy, tokens))
            keep(found[-1])

    policies = grid(engine.about.experts, engine.about.top_k, engine.about.drafts or 0, score)
    for policy in policies:
        add(policy)
        advance(1)
    whole = {candidate.policy: candidate for candidate in found}
    for k0 in DIVIDED:
        family = [whole[policy] for policy in family_of(policies, k0)]
        for like in family[SOME]:
            budgets = allocate(family, like.mean_active)
            if len(set(budgets)) > 1:
                add(divided(like.policy, dict(zip(engine.about.layer_numbers, budgets, strict=True))))
            advance(1)
    engine.count_all(False)
    return found


def divided(policy: Policy, budgets: dict[int, int]) -> Policy:
    """Alike but for m, which every layer has its own of."""
    return policy.model_copy(update={"batch_budget": 0}).with_layer_budgets(budgets)


def looks(num_experts: int, top_k: int, drafts: int = 0) -> int:
    """How often `scan` calls `advance`."""
    policies = grid(num_experts, top_k, drafts)
    return len(policies) + sum(len(family_of(policies, k0)[SOME]) for k0 in DIVIDED)


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
    """Those that no other beats in both experts and harm, fewest experts first."""
    best: list[Candidate] = []
    for candidate in sorted(found, key=lambda c: (c.mean_active, c.harm)):
        if not best or candidate.harm < best[-1].harm:
            best.append(candidate)
    return best
