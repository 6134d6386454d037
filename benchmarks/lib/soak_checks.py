"""What must hold of a campaign: metrics that add up, memory that stays, and a row for each check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from lib.soak_requests import Counted
from lib.soak_server import Metrics
from xshare.results import Row

COUNTERS = ("_total", "_count", "_bucket")
ENDED = "vllm:request_success_total"
BYPASSED = "xshare:steps_bypassed_total"
TOKENS = "vllm:generation_tokens_total"
WARM_UP = 0.4  # of the time: what is only done once has been done by then
AT_AN_END = 0.15  # of the samples after that, whose median is a begin or an end
MOST_GROWTH = 0.02


@dataclass
class Scrapes:
    """Every scrape of /metrics held against the one before."""

    problems: list[str] = field(default_factory=list)
    count: int = 0
    _before: Metrics = field(default_factory=dict)

    def add(self, now: Metrics, with_xshare: bool) -> None:
        self.problems += fallen(self._before, now) + (out_of_range(now) if with_xshare else [])
        self._before = now
        self.count += 1


def fallen(before: Metrics, now: Metrics) -> list[str]:
    """Counters that are less than they were, or have gone."""
    return [
        f"{name}{{{labels}}} fell from {value:g} to {now.get((name, labels))}"
        for (name, labels), value in before.items()
        if name.endswith(COUNTERS) and not now.get((name, labels), -1.0) >= value
    ]


def out_of_range(now: Metrics) -> list[str]:
    """XShare's gauges that no step can have, and a scrape that lacks them."""
    found = [] if of(now, "xshare:on") else ["xshare:on is missing"]
    shares = ("xshare:mass_kept", "xshare:rows_below_half", "xshare:smallest_kept", "xshare:on", "xshare:cost")
    for (name, labels), value in now.items():
        if name in shares and not -1e-6 <= value <= 1 + 1e-6:
            found.append(f"{name}{{{labels}}} is {value:g}, expected a share")
        if name == "xshare:experts_active" and value > now["xshare:experts_selected", labels] + 1e-6:
            found.append(f"{name}{{{labels}}} is more than what was selected")
    return found


def of(metrics: Metrics, name: str) -> list[float]:
    """The values of all labels."""
    return [value for (each, _), value in metrics.items() if each == name]


def grown(before: Metrics, now: Metrics, name: str) -> int:
    return round(sum(of(now, name)) - sum(of(before, name)))


def sums(before: Metrics, now: Metrics, counted: Counted) -> list[str]:
    """vLLM's counters against what clients have counted: those that hung up may have come to their end, or not."""
    found = []
    for name, least, most in (
        (ENDED, counted.ended, counted.ended + counted.given_up),
        (TOKENS, counted.tokens, counted.tokens + counted.tokens_given_up),
    ):
        if not least <= (value := grown(before, now, name)) <= most:
            found.append(f"{name} grew by {value}, expected {least} to {most}")
    left = [f"{name} is {sum(of(now, name)):g}" for name in ("vllm:num_requests_running", "vllm:num_requests_waiting")]
    return found + [f"{each} when all have ended" for each in left if not each.endswith(" 0")]


def steps_of(metrics: Metrics) -> int:
    """Steps acted on and left alone. A mismatch is a layer's, not a step's."""
    bypassed = [
        v for (name, labels), v in metrics.items() if name == "xshare:steps_bypassed_total" and labels != MISMATCH
    ]
    return round(sum(of(metrics, "xshare:steps_pruned_total")) + sum(bypassed))


MISMATCH = "reason=mismatch"


def growth(samples: Sequence[Row], seconds: float) -> list[Row]:
    """By process: resident bytes after the warm-up and at the end, each a median of several samples. `samples` have
    `seconds` since the beginning, and bytes by process."""
    late = [sample for sample in samples if sample["seconds"] >= WARM_UP * seconds]
    some = max(1, round(AT_AN_END * len(late)))
    found = []
    for name in sorted({name for sample in late for name in sample if name != "seconds"}):
        held = [sample[name] for sample in late if name in sample]
        first, last = median(held[:some]), median(held[-some:])
        found.append({"process": name, "bytes_warm": first, "bytes_end": last, "growth": round(last / first - 1, 5)})
    return found


def check(name: str, passed: bool, detail: Any) -> Row:
    return {"check": name, "passed": bool(passed), "detail": str(detail)}


def listed(problems: Sequence[str], fine: str) -> str:
    """The first few of what is wrong, or what is fine."""
    return "; ".join(problems[:3]) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "") or fine
