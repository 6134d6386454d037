"""A policy that may be chosen, and what the scan measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xshare.policy import Policy


@dataclass(frozen=True)
class Candidate:
    policy: Policy
    active: tuple[float, ...]  # by layer
    native: tuple[float, ...]
    mass: tuple[float, ...]
    kl: float | None = None  # from native's next-token distribution, in nats per token; None if not measured

    @property
    def harm(self) -> float:
        """Orders candidates: less is better."""
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


def front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates that no other beats in both experts and harm, fewest experts first."""
    best: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: (c.mean_active, c.harm)):
        if not best or candidate.harm < best[-1].harm:
            best.append(candidate)
    return best
