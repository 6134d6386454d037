"""Interleaved repeats: every policy once in each, on the same requests, in an order that alternates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from xshare.bench.run_record import measure, warm
from xshare.bench.workload import Workload
from xshare.engines.base import Engine
from xshare.policy import Policy
from xshare.progress import Advance
from xshare.protected_share import protected_requests
from xshare.results import Row

NATIVE = "native"


@dataclass(frozen=True)
class Way:
    """What is measured: native routing (None) or a policy, in one of its forms."""

    policy: Policy | None
    cost: bool | None = None  # whether sets are weighed by what they cost; None: as the engine is
    equals: str | None = None  # of a plain policy: the one whose form by cost loads as many experts
    protected: float | None = None  # the share of its requests that are; None: as the engine is

    @property
    def name(self) -> str:
        return NATIVE if self.policy is None else str(self.policy)

    def columns(self) -> Row:
        """What tells it from others, in samples and rows."""
        more: Row = {"cost": True} if self.cost else {}
        more |= {} if self.equals is None else {"equals": self.equals}
        return {"policy": self.name} | more | ({} if self.protected is None else {"protected": self.protected})

    def guarded(self, requests: int) -> frozenset[int] | None:
        """Which of so many requests are protected."""
        return None if self.protected is None else protected_requests(self.protected, requests)


def control_of(engine: Engine) -> Policy | None:
    """Selection that keeps everything: what it costs is the cost of selecting. None for a server that cannot change."""
    if engine.about.policy is not None:
        return None
    return Policy(warmup=1, batch_budget=engine.about.experts)


def variants(engine: Engine, policies: Sequence[Policy]) -> dict[str, Policy | None]:
    """By name: native routing, the no-op control, the policies. A server that cannot be changed is what it is."""
    running = Policy.parse(engine.about.policy or NATIVE)
    first = [running, *filter(None, [control_of(engine)])]
    return {str(policy): None if str(policy) == NATIVE else policy for policy in (*first, *policies)}


def weighed(compared: Mapping[str, Policy | None], equal: Mapping[str, Policy]) -> list[Way]:
    """All of them without costs; behind each that `equal` names, its form by costs, and the plain policy named there,
    which loads as many experts as that."""
    found = []
    for name, policy in compared.items():
        found.append(Way(policy, False))
        if name in equal:
            found += [Way(policy, True), Way(equal[name], False, equals=name)]
    return found


def protecting(ways: Sequence[Way], shares: Sequence[float], control: Policy | None) -> list[Way]:
    """Behind each policy's plain form the same with each share of the requests protected. Under native routing and
    under the control nobody loses anything."""
    found = []
    for way in ways:
        found.append(way)
        if way.policy not in (None, control) and not way.cost and way.equals is None:
            found += [replace(way, protected=share) for share in dict.fromkeys(shares) if share]
    return found


def compare(
    engine: Engine,
    compared: Sequence[Way],
    workload: Workload,
    repeats: range,
    advance: Advance,
    keep: Callable[[list[Row]], None],
) -> None:
    """`keep` is given the samples of each repeat as soon as it is whole."""
    idle = workload.prompts_of(engine, -1)
    for way in compared if repeats else ():  # what is refused or compiled is so before time is taken
        engine.use(way.policy, timed=True, cost=way.cost)
        warm(engine, workload, idle, way.guarded(workload.batch))
    for repeat in repeats:
        prompts, arrivals = workload.prompts_of(engine, repeat), workload.arrivals_of(repeat)
        samples: dict[Way, Row] = {}
        tokens: dict[Way, list[list[int]]] = {}
        for place, way in enumerate(compared if repeat % 2 == 0 else compared[::-1]):
            engine.use(way.policy, timed=True, cost=way.cost)
            guarded = way.guarded(workload.requests)
            warm(engine, workload, idle, way.guarded(workload.batch))
            found, run = measure(engine, workload, prompts, arrivals, advance, guarded)
            samples[way] = way.columns() | {"repeat": repeat, "place": place} | found
            tokens[way] = [answer.tokens for answer in run.answers]
        native = next((tokens[way] for way in compared if way.policy is None), None)
        for way, sample in samples.items():
            sample["identical"] = _identical(native, tokens[way])
            if way.protected is not None:
                exact = sorted(way.guarded(workload.requests) or ())
                theirs = None if native is None else [native[who] for who in exact]
                sample["protected_identical"] = _identical(theirs, [tokens[way][who] for who in exact])
        keep([samples[way] for way in compared])


def _identical(native: list[list[int]] | None, tokens: list[list[int]]) -> float | None:
    """The share of answers that are native's, token for token."""
    if native is None or not any(native):
        return None
    return sum(a == b for a, b in zip(native, tokens, strict=True)) / len(native)
