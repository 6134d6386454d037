"""One run under one policy, as a flat record."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from statistics import median

import numpy as np

from xshare.bench.workload import Prompts, Workload
from xshare.engines.base import Answer, Engine, Run
from xshare.engines.counters import Stats
from xshare.errors import XShareError
from xshare.progress import Advance
from xshare.results import Row

WARM = 4  # tokens that are decoded after a change, before time is taken


def warm(engine: Engine, workload: Workload, prompts: Prompts, protected: Collection[int] | None = None) -> None:
    """On prompts of its own: an engine may remember those it has read."""
    asked = prompts[: workload.batch]
    engine.run(asked, limit=WARM, batch=workload.batch, to_the_end=True, protected=protected)


def measure(
    engine: Engine,
    workload: Workload,
    prompts: Prompts,
    arrivals: Sequence[float] | None,
    advance: Advance,
    protected: Collection[int] | None = None,
) -> tuple[Row, Run]:
    """The policy in use, on one workload."""
    run = engine.run(
        prompts,
        limit=workload.tokens,
        batch=workload.batch,
        arrivals=arrivals,
        to_the_end=True,
        advance=advance,
        protected=protected,
    )
    for answer in run.answers:
        if not answer.times_s or (answer.tokens and len(answer.tokens) != workload.tokens):
            raise XShareError(
                f"an answer ended after {len(answer.times_s)} of {workload.tokens} tokens: ask for fewer, or for an "
                f"engine that holds prompts of {workload.prompt_tokens} tokens and their answers"
            )
    return figures(run) | counted(engine.stats()), run


def figures(run: Run) -> Row:
    """Rates and latencies; None where the engine does not tell.

    Per request the rate is that of decoding, from the first token to the last; in all it is that of the whole run.
    Tokens that come together are one arrival: between them there is no latency to speak of.
    """
    tokens = sum(len(answer.times_s) for answer in run.answers)
    ends = max(answer.times_s[-1] for answer in run.answers)
    rates = [rate for rate in map(_rate, run.answers) if rate is not None]
    arrivals = [sorted(set(answer.times_s)) for answer in run.answers]
    gaps = [b - a for times in arrivals for a, b in pairwise(times)]
    firsts = [answer.first_s for answer in run.answers]
    turns = sum(len(times) - 1 for times in arrivals)
    return {
        "otps": median(rates) if rates else None,
        "otps_total": tokens / (ends - min(answer.arrived_s for answer in run.answers)),
        **_quantiles("ttft_ms", firsts),
        **_quantiles("itl_ms", gaps),
        "step_ms": run.decode_s / run.steps * 1000 if run.steps else None,
        "steps": run.steps or None,
        "rows_per_step": run.rows / run.steps if run.steps else None,
        "accepted_length": (tokens - len(run.answers)) / turns if run.drafted and turns else None,
        "drafted": run.drafted,
        "accepted": run.accepted,
    }


def _rate(answer: Answer) -> float | None:
    seconds = answer.times_s[-1] - answer.times_s[0]
    return (len(answer.times_s) - 1) / seconds if seconds else None


def _quantiles(name: str, seconds: list[float]) -> Row:
    middle, worst = np.quantile(seconds, [0.5, 0.99]) * 1000 if seconds else (None, None)
    return {
        f"{name}_p50": None if middle is None else float(middle),
        f"{name}_p99": None if worst is None else float(worst),
    }


def counted(stats: Stats) -> Row:
    """What selection did. `acted`: the share of decode steps on which it did anything; `acted_all`: the same of all
    steps, those that read prompts among them; `left_alone`: why not on most of the other decode steps."""
    reasons = {reason: count for reason, count in stats.steps_bypassed.items() if count and reason != "prefill"}
    steps = stats.steps_pruned + sum(reasons.values())
    all_steps = stats.steps_pruned + sum(stats.steps_bypassed.values())
    return {
        "active": stats.mean.get("experts_active"),
        "active_native": stats.mean.get("experts_native"),
        "mass": stats.mean.get("mass_kept"),
        "mass_shared": stats.mean.get("mass_shared"),
        "acted": stats.steps_pruned / steps if steps else None,
        "acted_all": stats.steps_pruned / all_steps if all_steps else None,
        "left_alone": max(reasons, key=lambda reason: reasons[reason], default=None),
    }
