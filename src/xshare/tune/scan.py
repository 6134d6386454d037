"""Cheap signals first: what each policy loads, keeps and changes, before any answer is judged.

Gating weight kept is the cheapest signal, but not enough: a token that loses its second expert may be lost while the
batch keeps nearly all of its weight. If the engine can force tokens, KL from native's next tokens says more. It is
taken over whole answers, because harm comes late in them, and over several batches, because few tokens are harmed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from xshare.engines.base import Engine
from xshare.errors import XShareError
from xshare.policy import Policy
from xshare.progress import Advance, quiet
from xshare.tune.candidate import Candidate
from xshare.tune.layers import allocate, layer_weights, prune_one_layer, with_budget_per_layer

SHARES = (0.0, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2)  # of N, as batch budgets
VOTES: tuple[dict[str, Any], ...] = (
    {"power": 3},
    {},
    {"score": "full"},
)  # how budgets are spent; the best first
REQUESTED = (1, 2, 4, 6, 8)  # request budgets, with drafts: then a request has several rows
COVERAGES = tuple(i / 100 for i in range(50, 95, 5))
PRICES = (0.16, 0.32, 0.48, 0.64, 0.8, 1.0)  # in k**2: what a token of k experts of equal weight votes by power 2
SOME = slice(1, -1, 2)  # the policies of a family for which per-layer budgets of equal load are tried
WEIGHED = (0.55, 0.6, 0.65, 0.7, 0.8)  # coverages with which layer weights are tried
FOLLOWED = (1.0, 0.5)  # powers: how closely layer weights follow the harm of each layer
CUT = 48  # tokens per answer if the engine cannot force tokens


def grid(num_experts: int, top_k: int, drafts: int = 0) -> list[Policy]:
    """Coverages, prices, and warm-ups below k with budgets up to half of the experts, by all votes; with drafts also
    request budgets."""
    budgets = list(dict.fromkeys(round(share * num_experts) for share in SHARES))[1:]
    policies = [Policy(coverage=rho) for rho in COVERAGES]
    policies += [Policy(price=float(f"{share / top_k**2:.2g}"), power=2) for share in PRICES]
    policies += [Policy(warmup=k0) for k0 in range(1, min(4, top_k))]
    # Beyond a warm-up of 2 a budget has little left to choose, and with 2 not much.
    for k0, votes in ((1, VOTES), (2, VOTES[:1])):
        if k0 < top_k:
            policies += [Policy(warmup=k0, batch_budget=m, **vote) for vote in votes for m in budgets[: 6 // k0 + 1]]
            policies += [Policy(warmup=k0, request_budget=mr, **vote) for vote in votes for mr in REQUESTED if drafts]
    return policies


def families(policies: Sequence[Policy]) -> list[list[Policy]]:
    """Policies grouped so that each group differs only in m: their budgets can be divided among the layers."""
    by_votes: dict[Policy, list[Policy]] = {}
    for policy in policies:
        if policy.warmup and policy.batch_budget and not policy.request_budget and policy.power == VOTES[0]["power"]:
            by_votes.setdefault(policy.model_copy(update={"batch_budget": 0}), []).append(policy)
    return list(by_votes.values())


def layer_weight_policies(kl: dict[int, float], top_k: int) -> Iterator[Policy]:
    """Coverages and prices with layer weights, from the KL of pruning each layer alone."""
    for power in FOLLOWED:
        if weights := layer_weights(kl, power):
            for rho in WEIGHED:
                yield Policy(coverage=rho, layer_weights=weights)
            for share in PRICES[1:4]:
                yield Policy(price=float(f"{share / top_k**2:.2g}"), power=2, layer_weights=weights)


class Scan:
    """`known` are candidates of an earlier run; `keep` receives every new one."""

    def __init__(
        self,
        engine: Engine,
        prompts: Sequence[Sequence[int]],
        *,
        batch: int,
        limit: int,
        advance: Advance = quiet,
        known: Sequence[Candidate] = (),
        keep: Callable[[Candidate], None] = lambda candidate: None,
    ) -> None:
        self.engine, self.prompts, self.batch, self.limit = engine, prompts, batch, limit
        self.advance, self.keep = advance, keep
        self.looked_at = {candidate.policy: candidate for candidate in known}
        about = engine.about
        self.policies = grid(about.experts, about.top_k, about.drafts or 0)
        self.forced = cache(self._forced)

    @property
    def most(self) -> int:
        """The most that `advance` is called."""
        by_layer = sum(len(family[SOME]) for family in families(self.policies))
        weights = len(FOLLOWED) * (len(WEIGHED) + len(PRICES[1:4]))
        return len(self.policies) + by_layer + len(self.engine.about.layer_numbers) + weights

    def run(self) -> list[Candidate]:
        """The grid, per-layer budgets that load as much as some of the grid and keep more, and layer weights."""
        about = self.engine.about
        layers = about.layer_numbers
        self.engine.count_all(True)
        candidates = {policy: self.look(policy) for policy in self.policies}
        for family in families(self.policies):
            for like in family[SOME]:
                budgets = allocate([candidates[policy] for policy in family], candidates[like].mean_active)
                if len(set(budgets)) > 1:
                    policy = with_budget_per_layer(like, dict(zip(layers, budgets, strict=True)))
                    candidates[policy] = self.look(policy)
        if self.engine.forces and len(layers) > 1:
            warmup = max(1, min(2, about.top_k - 1))
            kl = {layer: self.look(prune_one_layer(layer, layers, about.experts, warmup)).kl for layer in layers}
            known = {layer: layer_kl for layer, layer_kl in kl.items() if layer_kl is not None}
            for policy in layer_weight_policies(known, about.top_k) if len(known) == len(layers) else ():
                candidates[policy] = self.look(policy)
        self.engine.count_all(False)
        return list(candidates.values())

    def look(self, policy: Policy) -> Candidate:
        """Measure a policy on native's answers, teacher-forced; on freely decoded tokens if the engine cannot force."""
        if policy not in self.looked_at:
            self.looked_at[policy] = self._look(policy)
            self.keep(self.looked_at[policy])
        self.advance(1)
        return self.looked_at[policy]

    def _look(self, policy: Policy) -> Candidate:
        prompts, answers = self.forced()
        self.engine.use(policy)
        kl = None
        if answers:
            forced = self.engine.diverge(prompts, answers, self.batch)
            kl = forced.kl / forced.tokens
        else:
            self.engine.run(prompts, limit=min(CUT, self.limit), batch=self.batch, to_the_end=True)
        stats = self.engine.stats()
        if not stats.mean.get("experts_active"):
            raise XShareError(
                f"no step of {policy} was counted: its answers are too short, or the engine routes natively"
            )
        names = ("experts_active", "experts_native", "mass_kept")
        active, native, mass = (tuple(stats.by_layer[name]) for name in names)
        return Candidate(policy, active, native, mass, kl)

    def _forced(self) -> tuple[Sequence[Sequence[int]], list[list[int]]]:
        """Prompts with native's answers; one batch of prompts without answers if the engine cannot force tokens."""
        if not self.engine.forces:
            return self.prompts[: self.batch], []
        self.engine.use(None)
        answers = [
            answer.tokens for answer in self.engine.run(self.prompts, limit=self.limit, batch=self.batch).answers
        ]
        long = [i for i, answer in enumerate(answers) if len(answer) > 1]  # the first token comes with the prompt
        if not long:
            return self.prompts[: self.batch], []
        return [self.prompts[i] for i in long], [answers[i] for i in long]
