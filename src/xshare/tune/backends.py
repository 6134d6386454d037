"""One engine per MoE kernel of vLLM, one after another, each in its own process.

Only a start shows whether a kernel works with this machine and model. Kernels that do not start are left out, with the
reason.
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
    """What is measured on every kernel."""

    model: str | None
    policies: tuple[str, ...]
    workload: Workload
    repeats: int
    drafts: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)  # engine arguments, without moe_backend


@dataclass(frozen=True)
class BackendResult:
    moe_backend: str
    backend: str | None = None  # the kernel that vLLM chose for it
    why: str | None = None  # why it was not measured
    rows: list[Row] = field(default_factory=list)
    about: Row = field(default_factory=dict)  # of an engine that has started

    def record(self) -> Row:
        return {"moe_backend": self.moe_backend, "backend": self.backend, "why": self.why}


def measure_in_process(name: str, benchmark: BackendBenchmark, known: Mapping[str, str]) -> BackendResult:
    """Measure one moe_backend in its own process, which frees the device whatever happens. `known`: kernel -> the
    moe_backend under which it was already measured."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        try:
            return pool.submit(measure_backend, name, benchmark, known).result()
        except BrokenProcessPool:
            return BackendResult(name, why="its process died")


def measure_backend(name: str, benchmark: BackendBenchmark, known: Mapping[str, str]) -> BackendResult:
    try:
        policies = [Policy.parse(text) for text in benchmark.policies]
        options = dict(benchmark.options) | {"moe_backend": name}
        engine = open_engine("vllm", benchmark.model, drafts=benchmark.drafts, policies=policies, options=options)
        try:
            return measure_engine(engine, name, benchmark, policies, known)
        finally:
            engine.close()
    except Exception as error:  # any error: the next kernel may still work
        return BackendResult(name, why=first_sentence(error))


def measure_engine(
    engine: Engine, name: str, benchmark: BackendBenchmark, policies: list[Policy], known: Mapping[str, str]
) -> BackendResult:
    backend = engine.about.backend
    if backend is not None and backend in known:
        why = f"the kernel is {known[backend]}'s, {backend}"
        return BackendResult(name, backend, why, about=engine.about.record())
    variants, samples = [Variant(policy) for policy in policies_by_name(engine, policies).values()], list[Row]()
    compare(engine, variants, benchmark.workload, range(benchmark.repeats), quiet, samples.extend)
    setting = {"moe_backend": name, "backend": backend} | benchmark.workload.record() | {"drafts": engine.about.drafts}
    return BackendResult(
        name, backend, None, summary_rows(samples, str(noop_control(engine)), setting), engine.about.record()
    )


def first_sentence(error: BaseException) -> str:
    """The first sentence of the message, without the prefixes of vLLM and pydantic."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = re.sub(r"^(vllm cannot serve .*?: )?(\d+ validation errors? for \w+ )?(Value error, )?", "", text)
    return re.split(r"(?<=\w[.!])\s", text, maxsplit=1)[0][:200]
