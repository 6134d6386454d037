"""Counters that an engine never sets back, read as differences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
# What is counted of a step, by layer. An engine may count fewer.
FIGURES = ("experts_native", "experts_selected", "experts_active", "mass_kept", "top1_kept", "max_load", "excluded")


def layer_numbers(names: Sequence[str]) -> list[int]:
    """The model's own numbers of layers by their names: model.layers.3.mlp.gate is 3."""
    return [int(number[1]) if (number := LAYER.search(name)) else place for place, name in enumerate(names)]


def since(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What was counted between two answers of `xshare_stats`, in the form of Engine.stats.

    Steps are counted for ever; the figures are means over samples, which a change of policy clears. `mean` holds each
    figure's mean over the layers, and nothing where no step was sampled.
    """
    bypassed = {
        reason: count - before["steps_bypassed"].get(reason, 0) for reason, count in now["steps_bypassed"].items()
    }
    found = now | {
        "steps_pruned": now["steps_pruned"] - before["steps_pruned"],
        "steps_bypassed": {reason: count for reason, count in bypassed.items() if count},
        "mean": {},
    }
    at, until = before.get("samples", 0), now.get("samples", 0)
    if at > until:  # cleared in between
        at = 0
    found["samples"] = until - at
    for name in [name for name in FIGURES if name in now] if until > at else ():
        old = before[name] if at else [0.0] * len(now[name])
        by_layer = [(b * until - a * at) / (until - at) for a, b in zip(old, now[name], strict=True)]
        found[name], found["mean"][name] = by_layer, sum(by_layer) / len(by_layer)
    return found
