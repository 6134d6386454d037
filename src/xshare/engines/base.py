"""What bench, quality, doctor and tune ask of an engine, whichever it is.

An engine decodes prompts and tells when each token came. Its policy is changed live, so that one engine serves a whole
comparison; `None` is the engine as it is without XShare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from xshare.policy import Policy

Advance = Callable[[int], None]


def quiet(done: int) -> None:
    pass


@dataclass
class Answer:
    tokens: list[int]  # its end included; empty where an engine gives text alone
    text: str
    arrived_s: float = 0.0  # when it was asked, on the run's clock
    times_s: list[float] = field(default_factory=list)  # when each token came, on the same clock

    @property
    def first_s(self) -> float:
        """Time to the first token."""
        return self.times_s[0] - self.arrived_s

    @property
    def gaps_s(self) -> list[float]:
        """Between tokens. Tokens accepted together come together."""
        return [b - a for a, b in zip(self.times_s, self.times_s[1:], strict=False)]


@dataclass
class Run:
    answers: list[Answer]
    decode_s: float = 0.0  # seconds of pure decode steps: no prompt was read in them
    steps: int = 0  # of those
    rows: int = 0  # tokens decoded in them
    drafted: int = 0  # tokens proposed by a drafter, and how many of them were accepted
    accepted: int = 0


@dataclass
class Divergence:
    """Sums over the positions of answers that were forced: native routing and a policy on the same text."""

    tokens: int = 0
    kl: float = 0.0  # of native's next-token distribution from the policy's, in nats
    surprise: float = 0.0  # of the text under the policy, and natively
    surprise_native: float = 0.0
    same: int = 0  # positions at which both would go on with the same token


class Engine(Protocol):
    about: dict[str, Any]  # the regime: engine and its version, model, device, dtype, experts, k, MoE layers, drafts
    forces: bool  # whether it can `diverge`: not behind a server, nor with drafts in vLLM
    serves: Policy | None  # what a server that can be changed was found with

    def use(self, policy: Policy | None) -> None:
        """From the next run on; counters start from zero."""

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        limit: int,
        batch: int,
        arrivals: Sequence[float] | None = None,
        to_the_end: bool = False,
        advance: Advance = quiet,
    ) -> Run:
        """Decode greedily, at most `batch` at a time, each up to `limit` tokens or its end.

        `arrivals` are seconds after the start at which each prompt comes; all are there at once without them.
        `to_the_end`: every answer has `limit` tokens, whatever it says, so that a batch stays what it is.
        """

    def diverge(
        self,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Sequence[int]],
        batch: int,
        advance: Advance = quiet,
    ) -> Divergence:
        """The answers under the policy in use, teacher-forced, held against native routing: `batch` of them begin
        together and are decoded side by side. Refused where `forces` is not set."""

    def stats(self) -> dict[str, Any]:
        """Since `use`: steps_pruned, steps_bypassed, and by layer experts_native, experts_active, mass_kept."""

    def count_all(self, on: bool) -> None:
        """Count experts in every step from now on, which takes time, or in as many as otherwise."""

    def encode(self, text: str) -> list[int]: ...

    def close(self) -> None: ...
