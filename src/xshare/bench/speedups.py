"""Native routing and a few policies in turns, on one engine: how many times as fast each is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from xshare.engines.base import Engine
from xshare.policy import Policy
from xshare.progress import Advance, quiet
from xshare.results import Row
from xshare.statistics import median_interval

PROMPT = [1, 2, 3, 4]  # where nobody cares what is decoded


def in_turns(
    engine: Engine,
    policies: Mapping[str, Policy],
    *,
    batch: int,
    prompts: Sequence[Sequence[int]] | None = None,
    steps: int = 12,
    repeats: int = 9,
    advance: Advance = quiet,
) -> list[Row]:
    """A row for native routing and for each policy: decode steps of `batch` prompts, the same in every run, of which
    the middle one counts.

    Experts are counted in a first run, which is not timed, and natively nothing is attached when time is taken.
    """
    ways: dict[str, Policy | None] = {"native": None, **policies}
    experts: dict[str, tuple[float, float]] = {}
    ms: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name in ways if repeat % 2 else reversed(ways):
            engine.use(ways[name], timed=repeat > 0)
            found = engine.run(prompts or [PROMPT] * batch, limit=1 + steps, batch=batch, to_the_end=True)
            if repeat:
                ms[name].append(median(found.answers[0].gaps_s) * 1000)
            else:
                mean = engine.stats().mean
                experts[name] = mean["experts_active"], mean["experts_native"]
            advance(1)
    rows = []
    for name, policy in ways.items():
        ratio, low, high = median_interval([a / b for a, b in zip(ms["native"], ms[name], strict=True)])
        row: Row = {"model": engine.about.model, "batch": batch, "policy": "native" if policy is None else str(policy)}
        row |= dict(zip(("active", "active_native"), experts[name], strict=True))
        row |= {"step_ms": median(ms[name]), "ratio": ratio, "ratio_low": low, "ratio_high": high, "repeats": repeats}
        rows.append(row)
    return rows
