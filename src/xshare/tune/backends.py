"""One engine for each kernel that vLLM has for experts, one after another, each in a process of its own.

What a machine, a model and a kernel take together only a start tells: those that do not start are left out, with why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from xshare.bench.interleaved import Variant, compare, noop_control, policies_by_name
from xshare.bench.summary import summary_rows
from xshare.bench.workload import Workload
from xshare.engines.base import Engine
from xshare.engines.by_name import open_engine
from xshare.policy import Policy
from xshare.progress import quiet
from xshare.results import Row


@dataclass(frozen=True)
class BackendBenchmark:
    """What every kernel is asked."""

    model: str | None
    policies: tuple[str, ...]
    workload: Workload
    repeats: int
    drafts: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)  # of the engine, but for its moe_backend


@dataclass(frozen=True)
class BackendResult:
    moe_backend: str
    backend: str | None = None  # the kernel that it came to
    why: str | None = None  # it was not measured
    rows: list[Row] = field(default_factory=list)
    about: Row = field(default_factory=dict)

    def record(self) -> Row:
        return {"moe_backend": self.moe_backend, "backend": self.backend, "why": self.why}


def measure_in_process(name: str, asked: BackendBenchmark, known: Mapping[str, str]) -> BackendResult:
    """In a process of its own: what it holds of a device is given back whatever happens. `known`: by kernel, the value
    under which it was measured."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        try:
            return pool.submit(measure_backend, name, asked, known).result()
        except BrokenProcessPool:
            return BackendResult(name, why="its process died")


def measure_backend(name: str, asked: BackendBenchmark, known: Mapping[str, str]) -> BackendResult:
    try:
        policies = [Policy.parse(text) for text in asked.policies]
        options = dict(asked.options) | {"moe_backend": name}
        engine = open_engine("vllm", asked.model, drafts=asked.drafts, policies=policies, options=options)
        try:
            return measure_engine(engine, name, asked, policies, known)
        finally:
            engine.close()
    except Exception as error:  # of whatever kind: the next kernel may do
        return BackendResult(name, why=first_sentence(error))


def measure_engine(
    engine: Engine, name: str, asked: BackendBenchmark, policies: list[Policy], known: Mapping[str, str]
) -> BackendResult:
    backend = engine.about.backend
    if backend is not None and backend in known:
        return BackendResult(name, backend, f"the kernel is {known[backend]}'s, {backend}")
    compared, samples = [Variant(policy) for policy in policies_by_name(engine, policies).values()], list[Row]()
    compare(engine, compared, asked.workload, range(asked.repeats), quiet, samples.extend)
    setting = {"moe_backend": name, "backend": backend} | asked.workload.record() | {"drafts": engine.about.drafts}
    return BackendResult(
        name, backend, None, summary_rows(samples, str(noop_control(engine)), setting), engine.about.record()
    )


def first_sentence(error: BaseException) -> str:
    """Of what went wrong, without what was tried in vain before it."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = re.sub(r"^(vllm cannot serve .*?: )?(\d+ validation errors? for \w+ )?(Value error, )?", "", text)
    return re.split(r"(?<=\w[.!])\s", text, maxsplit=1)[0][:200]
