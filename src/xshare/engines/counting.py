"""What an engine counts; and its counters, which it never sets back, as differences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FIGURES = ("experts_native", "experts_active", "mass_kept")


@dataclass
class Stats:
    """What selection did."""

    steps_pruned: int = 0
    steps_bypassed: dict[str, int] = field(default_factory=dict)  # by reason
    samples: int = 0  # steps in which a server or vLLM counted experts
    by_layer: dict[str, list[float]] = field(default_factory=dict)  # those of FIGURES that were counted
    mean: dict[str, float] = field(default_factory=dict)  # of each over the layers


def since(before: dict[str, Any], now: dict[str, Any]) -> Stats:
    """What was counted between two answers of `xshare_stats`.

    Steps are counted for ever; the figures are means over samples, which a change of policy clears. There are none
    where no step was sampled.
    """
    bypassed = {
        reason: count - before["steps_bypassed"].get(reason, 0) for reason, count in now["steps_bypassed"].items()
    }
    at, until = before.get("samples", 0), now.get("samples", 0)
    if at > until:  # cleared in between
        at = 0
    found = Stats(
        now["steps_pruned"] - before["steps_pruned"],
        {reason: count for reason, count in bypassed.items() if count},
        until - at,
    )
    for name in FIGURES if until > at else ():
        old = before[name] if at else [0.0] * len(now[name])
        by_layer = [(b * until - a * at) / (until - at) for a, b in zip(old, now[name], strict=True)]
        found.by_layer[name], found.mean[name] = by_layer, sum(by_layer) / len(by_layer)
    return found
