"""A vLLM server as its /metrics shows it: one reading, and what happened between two of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from xshare.engines.client import Http, ServerError
from xshare.engines.counters import FIGURES, PROTECTED, Stats, since
from xshare.engines.prometheus_text import Sample, samples

SHOWN = tuple(dict.fromkeys((*FIGURES, *PROTECTED)))
NOTHING: dict[str, Any] = {"steps_pruned": 0, "steps_bypassed": {}, "samples": 0}


@dataclass(frozen=True)
class Reading:
    model: str
    policy: str
    on: bool
    cost: bool  # whether sets are weighed by what they cost
    counted: dict[str, Any]  # in the form of `xshare_stats`
    tokens: float  # generated since the server started, and of prompts
    prompt_tokens: float
    running: int  # requests
    waiting: int
    time_s: float = field(default_factory=time.monotonic)

    def follows(self, earlier: Reading) -> bool:
        """Whether the server has gone on since: one that was started again counts from nothing."""
        steps = (reading.counted["steps_pruned"] for reading in (earlier, self))
        return earlier.tokens <= self.tokens and next(steps) <= next(steps)


def read(http: Http) -> Reading:
    status, page = http.ask("/metrics")
    http.check_let_in(status)
    metrics = list(samples(page)) if status == 200 else []
    if not any(sample.name.startswith("vllm:") for sample in metrics):
        raise ServerError(f"the server at {http.url} is no vLLM server: its /metrics holds none of vLLM's figures")
    on = next((sample for sample in metrics if sample.name == "xshare:on"), None)
    if on is None:
        raise ServerError(
            f"the vLLM server at {http.url} shows no figures of xshare: start it with an xshare key in "
            "--additional-config, with metrics on and one API server process"
        )

    def total(name: str) -> float:
        return sum(sample.value for sample in metrics if sample.name == f"vllm:{name}")

    named = (sample.labels.get("model_name") for sample in metrics if sample.name.startswith("vllm:"))
    return Reading(
        model=next(filter(None, named), ""),
        policy=on.labels.get("policy", ""),
        on=on.value == 1,
        cost=any(sample.name == "xshare:cost" and sample.value == 1 for sample in metrics),
        counted=counted(metrics),
        tokens=total("generation_tokens_total"),
        prompt_tokens=total("prompt_tokens_total"),
        running=int(total("num_requests_running")),
        waiting=int(total("num_requests_waiting")),
    )


def counted(metrics: list[Sample]) -> dict[str, Any]:
    """What xshare has counted, as `since` takes it. Every figure is a list, by layer."""
    ours = [sample for sample in metrics if sample.name.startswith("xshare:")]
    answer: dict[str, Any] = NOTHING | {"steps_bypassed": {}}
    for sample in sorted(ours, key=lambda sample: int(sample.labels.get("layer", 0))):
        name = sample.name.removeprefix("xshare:").removesuffix("_total")
        if name == "steps_bypassed":
            answer[name][sample.labels.get("reason", "")] = int(sample.value)
        elif name in ("steps_pruned", "samples"):
            answer[name] = int(sample.value)
        elif name in SHOWN:
            answer.setdefault(name, []).append(sample.value)
    return answer


@dataclass(frozen=True)
class Between:
    """Two readings of one server."""

    first: Reading
    last: Reading

    @property
    def seconds(self) -> float:
        return self.last.time_s - self.first.time_s

    @property
    def tokens_per_s(self) -> float | None:
        return self._rate(self.last.tokens - self.first.tokens)

    @property
    def prompt_tokens_per_s(self) -> float | None:
        return self._rate(self.last.prompt_tokens - self.first.prompt_tokens)

    def steps_per_s(self, reason: str | None = None) -> float | None:
        """Left alone for that reason; acted on, where it is None."""
        steps = self.stats.steps_pruned if reason is None else self.stats.steps_bypassed.get(reason, 0)
        return self._rate(steps)

    @property
    def stats(self) -> Stats:
        return since(self.first.counted, self.last.counted, SHOWN)

    @property
    def experts(self) -> Stats:
        """The same where a step was sampled in between; otherwise since the last change of policy."""
        stats = self.stats
        return stats if stats.samples else since(NOTHING, self.last.counted, SHOWN)

    def _rate(self, count: float) -> float | None:
        return count / self.seconds if self.seconds > 0 else None
