"""Interleaved repeats: every policy once in each, on the same requests, in an order that alternates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xshare.bench.sample import measure, warm
from xshare.bench.workload import Workload
from xshare.engines.base import Engine
from xshare.policy import Policy
from xshare.progress import Advance
from xshare.results import Row

NATIVE = "native"


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


def compare(
    engine: Engine,
    compared: dict[str, Policy | None],
    workload: Workload,
    repeats: range,
    advance: Advance,
    keep: Callable[[list[Row]], None],
) -> None:
    """`keep` is given the samples of each repeat as soon as it is whole."""
    idle = workload.prompts_of(engine, -1)
    for policy in compared.values() if repeats else ():  # what is refused or compiled is so before time is taken
        engine.use(policy, timed=True)
        warm(engine, workload, idle)
    for repeat in repeats:
        prompts, arrivals = workload.prompts_of(engine, repeat), workload.arrivals_of(repeat)
        samples: dict[str, Row] = {}
        tokens: dict[str, list[list[int]]] = {}
        for place, name in enumerate(list(compared) if repeat % 2 == 0 else list(compared)[::-1]):
            engine.use(compared[name], timed=True)
            warm(engine, workload, idle)
            found, run = measure(engine, workload, prompts, arrivals, advance)
            samples[name] = {"policy": name, "repeat": repeat, "place": place} | found
            tokens[name] = [answer.tokens for answer in run.answers]
        for name, sample in samples.items():
            sample["identical"] = _identical(tokens.get(NATIVE), tokens[name])
        keep([samples[name] for name in compared])


def _identical(native: list[list[int]] | None, tokens: list[list[int]]) -> float | None:
    """The share of answers that are native's, token for token."""
    if native is None or not any(native):
        return None
    return sum(a == b for a, b in zip(native, tokens, strict=True)) / len(native)
