"""The speedup of a few policies over native routing, measured interleaved on one engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from xshare.engines.base import Engine
from xshare.policy import Policy
from xshare.progress import Advance, quiet
from xshare.results import Row
from xshare.statistics import median_interval

PROMPT = [1, 2, 3, 4]  # for timing, where the tokens do not matter


def compare_speeds(
    engine: Engine,
    policies: Mapping[str, Policy],
    *,
    batch: int,
    prompts: Sequence[Sequence[int]] | None = None,
    steps: int = 12,
    repeats: int = 9,
    advance: Advance = quiet,
) -> list[Row]:
    """One row per policy, native routing first. Every run decodes the same `batch` prompts; its median step counts.

    Experts are counted in a first run that is not timed, so that timed native runs have nothing attached.
    """
    variants: dict[str, Policy | None] = {"native": None, **policies}
    experts: dict[str, tuple[float, float]] = {}
    ms: dict[str, list[float]] = {name: [] for name in variants}
    for repeat in range(repeats + 1):
        for name in variants if repeat % 2 else reversed(variants):
            engine.use(variants[name], timed=repeat > 0)
            run = engine.run(prompts or [PROMPT] * batch, limit=1 + steps, batch=batch, to_the_end=True)
            if repeat:
                ms[name].append(median(run.answers[0].gaps_s) * 1000)
            else:
                mean = engine.stats().mean
                experts[name] = mean["experts_active"], mean["experts_native"]
            advance(1)
    rows = []
    for name, policy in variants.items():
        ratio, low, high = median_interval([a / b for a, b in zip(ms["native"], ms[name], strict=True)])
        row: Row = {"model": engine.about.model, "batch": batch, "policy": "native" if policy is None else str(policy)}
        row |= dict(zip(("active", "active_native"), experts[name], strict=True))
        row |= {"step_ms": median(ms[name]), "ratio": ratio, "ratio_low": low, "ratio_high": high, "repeats": repeats}
        rows.append(row)
    return rows
