"""One run under one policy, as a flat record."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

import numpy as np

from xshare.bench.workload import Prompts, Workload
from xshare.engines.base import Answer, Engine, Run
from xshare.engines.counters import Stats
from xshare.errors import XShareError
from xshare.progress import Advance
from xshare.results import Row

WARM = 4  # tokens decoded after a policy change before anything is timed


def warm_up(engine: Engine, workload: Workload, prompts: Prompts, protected: Collection[int] | None = None) -> None:
    """Decode a few tokens of one batch. The prompts must not be timed later: engines cache prefixes."""
    batch_prompts = prompts[: workload.batch]
    engine.run(batch_prompts, limit=WARM, batch=workload.batch, to_the_end=True, protected=protected)


def warm_up_joining(engine: Engine, workload: Workload) -> None:
    """Untimed: 1, 2, 4, ... requests at once, alone and beside one that decodes; then the whole workload.

    Where requests join others, prefill steps have sizes of their own, and an engine compiles kernels for a size when it
    first occurs, which takes seconds each. Every run has new prompts: engines cache prefixes.
    """
    counts = [2**power for power in range(min(workload.batch, workload.requests).bit_length())]
    bursts = [[0.0] * count for count in counts]
    # The first request's prompt is being read when the others arrive, so it decodes while theirs are.
    bursts += [[0.0] + [0.001] * count for count in counts if count < workload.batch]
    runs = [(replace(workload, requests=len(arrivals)), arrivals, WARM) for arrivals in bursts]
    for repeat, (load, arrivals, limit) in enumerate([*runs, (workload, workload.arrivals_of(-1), workload.tokens)], 2):
        prompts = load.prompts_of(engine, -repeat)
        engine.run(prompts, limit=limit, batch=workload.batch, arrivals=arrivals, to_the_end=True)


def measure(
    engine: Engine,
    workload: Workload,
    prompts: Prompts,
    arrivals: Sequence[float] | None,
    advance: Advance,
    protected: Collection[int] | None = None,
) -> tuple[Row, Run]:
    """Run the workload under the policy in use; returns its record and the run."""
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
    waited: Row = {"compiled": run.compiled} if run.compiled else {}
    return speed_figures(run) | waited | selection_figures(engine.stats()), run


def speed_figures(run: Run) -> Row:
    """Rates and latencies; None where the engine does not report them.

    `otps` is the decode rate per request, from its first token to its last; `otps_total` is the rate of the whole run.
    Tokens that arrive together count as one arrival, so that drafts do not produce an ITL of zero.
    """
    tokens = sum(len(answer.times_s) for answer in run.answers)
    last_s = max(answer.times_s[-1] for answer in run.answers)
    rates = [rate for rate in map(_rate, run.answers) if rate is not None]
    arrivals = [sorted(set(answer.times_s)) for answer in run.answers]
    gaps = [b - a for times in arrivals for a, b in pairwise(times)]
    ttfts = [answer.first_s for answer in run.answers]
    decode_arrivals = sum(len(times) - 1 for times in arrivals)
    return {
        "otps": median(rates) if rates else None,
        "otps_total": tokens / (last_s - min(answer.arrived_s for answer in run.answers)),
        **_quantiles("ttft_ms", ttfts),
        **_quantiles("itl_ms", gaps),
        "step_ms": run.decode_s / run.steps * 1000 if run.steps else None,
        "steps": run.steps or None,
        "rows_per_step": run.rows / run.steps if run.steps else None,
        "accepted_length": (tokens - len(run.answers)) / decode_arrivals if run.drafted and decode_arrivals else None,
        "drafted": run.drafted,
        "accepted": run.accepted,
    }


def _rate(answer: Answer) -> float | None:
    seconds = answer.times_s[-1] - answer.times_s[0]
    return (len(answer.times_s) - 1) / seconds if seconds else None


def _quantiles(name: str, seconds: list[float]) -> Row:
    p50, p99 = np.quantile(seconds, [0.5, 0.99]) * 1000 if seconds else (None, None)
    return {
        f"{name}_p50": None if p50 is None else float(p50),
        f"{name}_p99": None if p99 is None else float(p99),
    }


def selection_figures(stats: Stats) -> Row:
    """What selection did. `acted`: share of decode steps that it pruned; `acted_all`: the same share of all steps,
    prefill included; `left_alone`: the most frequent reason why a decode step was not pruned."""
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
