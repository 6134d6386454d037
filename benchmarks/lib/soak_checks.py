"""What must hold after a campaign: metrics add up and memory does not grow. One row per check."""

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
WARM_UP = 0.4  # of the time: what is done only once has been done by then
AT_AN_END = 0.15  # of the samples after the warm-up: the median of as many at either end is compared
MOST_GROWTH = 0.02


@dataclass
class Scrapes:
    """Every scrape of /metrics, compared with the previous one."""

    problems: list[str] = field(default_factory=list)
    count: int = 0
    _before: Metrics = field(default_factory=dict)

    def add(self, now: Metrics, with_xshare: bool) -> None:
        self.problems += fallen(self._before, now) + (out_of_range(now) if with_xshare else [])
        self._before = now
        self.count += 1


def fallen(before: Metrics, now: Metrics) -> list[str]:
    """One sentence per counter that fell or disappeared."""
    return [
        f"{name}{{{labels}}} fell from {value:g} to {now.get((name, labels))}"
        for (name, labels), value in before.items()
        if name.endswith(COUNTERS) and not now.get((name, labels), -1.0) >= value
    ]


def out_of_range(now: Metrics) -> list[str]:
    """One sentence per gauge of XShare with an impossible value, and one if the scrape lacks them."""
    problems = [] if values_of(now, "xshare:on") else ["xshare:on is missing"]
    shares = ("xshare:mass_kept", "xshare:rows_below_half", "xshare:smallest_kept", "xshare:on", "xshare:cost")
    for (name, labels), value in now.items():
        if name in shares and not -1e-6 <= value <= 1 + 1e-6:
            problems.append(f"{name}{{{labels}}} is {value:g}, expected a share")
        if name == "xshare:experts_active" and value > now["xshare:experts_selected", labels] + 1e-6:
            problems.append(f"{name}{{{labels}}} is more than what was selected")
    return problems


def values_of(metrics: Metrics, name: str) -> list[float]:
    """A metric's values, one per set of labels."""
    return [value for (metric, _), value in metrics.items() if metric == name]


def increase(before: Metrics, now: Metrics, name: str) -> int:
    return round(sum(values_of(now, name)) - sum(values_of(before, name)))


def counter_mismatches(before: Metrics, now: Metrics, counted: Counted) -> list[str]:
    """One sentence per counter of vLLM that disagrees with the clients' counts.

    A request whose client hung up may have ended or not, so the counters may lie in a range."""
    problems = []
    for name, least, most in (
        (ENDED, counted.ended, counted.ended + counted.given_up),
        (TOKENS, counted.tokens, counted.tokens + counted.tokens_given_up),
    ):
        if not least <= (value := increase(before, now, name)) <= most:
            problems.append(f"{name} grew by {value}, expected {least} to {most}")
    running = [
        f"{name} is {sum(values_of(now, name)):g}"
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting")
    ]
    return problems + [f"{sentence} when all have ended" for sentence in running if not sentence.endswith(" 0")]


def steps_of(metrics: Metrics) -> int:
    """Steps acted on plus steps bypassed. A mismatch counts a layer, not a step, so it is left out."""
    bypassed = [
        v for (name, labels), v in metrics.items() if name == "xshare:steps_bypassed_total" and labels != MISMATCH
    ]
    return round(sum(values_of(metrics, "xshare:steps_pruned_total")) + sum(bypassed))


MISMATCH = "reason=mismatch"


def growth(samples: Sequence[Row], seconds: float) -> list[Row]:
    """One row per process: resident bytes after the warm-up and at the end, each the median of several samples.

    samples: `seconds` since the beginning, and resident bytes by process
    """
    late = [sample for sample in samples if sample["seconds"] >= WARM_UP * seconds]
    window = max(1, round(AT_AN_END * len(late)))
    rows = []
    for name in sorted({name for sample in late for name in sample if name != "seconds"}):
        resident = [sample[name] for sample in late if name in sample]
        first, last = median(resident[:window]), median(resident[-window:])
        rows.append({"process": name, "bytes_warm": first, "bytes_end": last, "growth": round(last / first - 1, 5)})
    return rows


def check_row(name: str, passed: bool, detail: Any) -> Row:
    return {"check": name, "passed": bool(passed), "detail": str(detail)}


def problems_text(problems: Sequence[str], fine: str) -> str:
    """The first three problems and how many more there are; `fine` if there are none."""
    return "; ".join(problems[:3]) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "") or fine
