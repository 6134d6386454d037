"""Interleaved repeats: each repeat runs every policy once on the same requests, in alternating order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from xshare.bench.run_record import measure, warm_up, warm_up_joining
from xshare.bench.workload import Workload
from xshare.engines.base import Engine
from xshare.policy import Policy
from xshare.progress import Advance, quiet
from xshare.protected_share import protected_requests
from xshare.results import Row

NATIVE = "native"
TRIES = 5  # of a run in which the engine compiled a kernel: its times would be those of the compiler


@dataclass(frozen=True)
class Variant:
    """What one row measures: native routing (`policy` None) or a policy, with or without costs and protection."""

    policy: Policy | None
    cost: bool | None = None  # whether sets are weighed by cost; None: as the engine is configured
    equals: str | None = None  # on a plain policy: name of the policy that loads as many experts when it weighs costs
    protected: float | None = None  # share of requests that are protected; None: as the engine is configured

    @property
    def name(self) -> str:
        return NATIVE if self.policy is None else str(self.policy)

    def columns(self) -> Row:
        """The columns that identify this variant in samples and rows."""
        columns: Row = {"policy": self.name}
        columns |= {"cost": True} if self.cost else {}
        columns |= {} if self.equals is None else {"equals": self.equals}
        return columns | ({} if self.protected is None else {"protected": self.protected})

    def protected_requests(self, requests: int) -> frozenset[int] | None:
        """Indices of the protected ones among `requests` requests; None: as the engine is configured."""
        return None if self.protected is None else protected_requests(self.protected, requests)


def noop_control(engine: Engine) -> Policy | None:
    """A policy that keeps every expert: its slowdown is the cost of selecting. None if the policy is fixed."""
    if engine.about.policy is not None:
        return None
    return Policy(warmup=1, batch_budget=engine.about.experts)


def policies_by_name(engine: Engine, policies: Sequence[Policy]) -> dict[str, Policy | None]:
    """Native routing, the no-op control and the policies, by name. A server with a fixed policy has that in place of
    the first two."""
    running = Policy.parse(engine.about.policy or NATIVE)
    always = [running, *filter(None, [noop_control(engine)])]
    return {str(policy): None if str(policy) == NATIVE else policy for policy in (*always, *policies)}


def with_cost_variants(policies: Mapping[str, Policy | None], equal: Mapping[str, Policy]) -> list[Variant]:
    """Every policy without costs. After each policy in `equal`: the same policy with costs, and the plain policy
    `equal` has for it, which loads as many experts."""
    variants = []
    for name, policy in policies.items():
        variants.append(Variant(policy, False))
        if name in equal:
            variants += [Variant(policy, True), Variant(equal[name], False, equals=name)]
    return variants


def with_protected_variants(
    variants: Sequence[Variant], shares: Sequence[float], control: Policy | None
) -> list[Variant]:
    """After each plain policy, the same policy with each share of the requests protected. Native routing and the
    control have no such variants: they drop no expert, so there is nothing to protect from."""
    result = []
    for variant in variants:
        result.append(variant)
        if variant.policy not in (None, control) and not variant.cost and variant.equals is None:
            result += [replace(variant, protected=share) for share in dict.fromkeys(shares) if share]
    return result


def compare(
    engine: Engine,
    variants: Sequence[Variant],
    workload: Workload,
    repeats: range,
    advance: Advance,
    keep: Callable[[list[Row]], None],
) -> None:
    """Measure all variants. `keep` receives the samples of each repeat when the repeat is complete."""
    warm_up_prompts = workload.prompts_of(engine, -1)
    for variant in variants if repeats else ():  # refuse and compile before anything is timed
        engine.use(variant.policy, timed=True, cost=variant.cost)
        warm_up(engine, workload, warm_up_prompts, variant.protected_requests(workload.batch))
    if repeats and workload.joins:
        engine.use(variants[0].policy, timed=True, cost=variants[0].cost)
        warm_up_joining(engine, workload)
    for repeat in repeats:
        prompts, arrivals = workload.prompts_of(engine, repeat), workload.arrivals_of(repeat)
        samples: dict[Variant, Row] = {}
        tokens: dict[Variant, list[list[int]]] = {}
        for position, variant in enumerate(variants if repeat % 2 == 0 else variants[::-1]):
            protected = variant.protected_requests(workload.requests)
            for attempt in range(TRIES):
                engine.use(variant.policy, timed=True, cost=variant.cost)
                warm_up(engine, workload, warm_up_prompts, variant.protected_requests(workload.batch))
                figures, run = measure(engine, workload, prompts, arrivals, quiet if attempt else advance, protected)
                if not run.compiled:
                    break
            samples[variant] = variant.columns() | {"repeat": repeat, "place": position} | figures
            tokens[variant] = [answer.tokens for answer in run.answers]
        native = next((tokens[variant] for variant in variants if variant.policy is None), None)
        for variant, sample in samples.items():
            sample["identical"] = _identical(native, tokens[variant])
            if variant.protected is not None:
                indices = sorted(variant.protected_requests(workload.requests) or ())
                native_protected = None if native is None else [native[index] for index in indices]
                sample["protected_identical"] = _identical(
                    native_protected, [tokens[variant][index] for index in indices]
                )
        keep([samples[variant] for variant in variants])


def _identical(native: list[list[int]] | None, tokens: list[list[int]]) -> float | None:
    """The share of answers equal to native's, token for token; None without native answers."""
    if native is None or not any(native):
        return None
    return sum(a == b for a, b in zip(native, tokens, strict=True)) / len(native)
