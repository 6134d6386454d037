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
    found = list(samples(page)) if status == 200 else []
    if not any(each.name.startswith("vllm:") for each in found):
        raise ServerError(f"the server at {http.url} is no vLLM server: its /metrics holds none of vLLM's figures")
    on = next((each for each in found if each.name == "xshare:on"), None)
    if on is None:
        raise ServerError(
            f"the vLLM server at {http.url} shows no figures of xshare: start it with an xshare key in "
            "--additional-config, with metrics on and one API server process"
        )

    def total(name: str) -> float:
        return sum(each.value for each in found if each.name == f"vllm:{name}")

    named = (each.labels.get("model_name") for each in found if each.name.startswith("vllm:"))
    return Reading(
        model=next(filter(None, named), ""),
        policy=on.labels.get("policy", ""),
        on=on.value == 1,
        cost=any(each.name == "xshare:cost" and each.value == 1 for each in found),
        counted=counted(found),
        tokens=total("generation_tokens_total"),
        prompt_tokens=total("prompt_tokens_total"),
        running=int(total("num_requests_running")),
        waiting=int(total("num_requests_waiting")),
    )


def counted(found: list[Sample]) -> dict[str, Any]:
    """What xshare has counted, as `since` takes it. Every figure is a list, by layer."""
    ours = [each for each in found if each.name.startswith("xshare:")]
    answer: dict[str, Any] = NOTHING | {"steps_bypassed": {}}
    for each in sorted(ours, key=lambda each: int(each.labels.get("layer", 0))):
        name = each.name.removeprefix("xshare:").removesuffix("_total")
        if name == "steps_bypassed":
            answer[name][each.labels.get("reason", "")] = int(each.value)
        elif name in ("steps_pruned", "samples"):
            answer[name] = int(each.value)
        elif name in SHOWN:
            answer.setdefault(name, []).append(each.value)
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
        found = self.stats
        return found if found.samples else since(NOTHING, self.last.counted, SHOWN)

    def _rate(self, count: float) -> float | None:
        return count / self.seconds if self.seconds > 0 else None
