"""What an engine counts. Its counters only grow, so a measurement takes differences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
# What is counted per step and layer. An engine may count fewer.
FIGURES = (
    "experts_native",
    "experts_selected",
    "experts_active",
    "mass_kept",
    "rows_below_half",  # share of the voting rows that keep less than half of their native weight
    "smallest_kept",  # the least share of its native weight that a voting row keeps
    "top1_kept",
    "max_load",
    "excluded",
    "mass_shared",  # mass_kept of the voting rows that are not protected; 1 where all are
)

PROTECTED = ("rows_protected", "experts_protected", "mass_shared")  # of protected requests, all but the first by layer
BY_LAYER = tuple(dict.fromkeys((*FIGURES, *PROTECTED[1:])))


def layer_numbers(names: Sequence[str]) -> tuple[int, ...]:
    """The layers' numbers in the model, by their names: model.layers.3.mlp.gate is 3. A name without a number gets its
    position."""
    matches = [LAYER.search(name) for name in names]
    return tuple(place if match is None else int(match[1]) for place, match in enumerate(matches))


def over_workers(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One answer to `xshare_stats` from those of all workers. Ranks of a pipeline stage have equal layers and counts;
    stages have different layers, which are joined in the model's order."""
    stages: dict[tuple[str, ...], dict[str, Any]] = {}
    for answer in answers:
        stages.setdefault(tuple(answer["layers"]), answer)
    if len(stages) == 1:
        return dict(answers[0])
    with_layers = [stage for layers, stage in stages.items() if layers]
    names = [name for stage in with_layers for name in stage["layers"]]
    order = sorted(range(len(names)), key=lambda place: layer_numbers(names)[place])
    joined = dict(with_layers[0]) | {"layers": [names[place] for place in order]}
    for figure in BY_LAYER:
        if all(figure in stage for stage in with_layers):
            values = [value for stage in with_layers for value in stage[figure]]
            joined[figure] = [values[place] for place in order]
    for name in ("experts", "top_k"):
        joined[name] = max(stage[name] for stage in with_layers)
    for name in ("expert_bytes", "host_layers", "routed_layers"):
        sizes = [stage[name] for stage in with_layers if name in stage]
        joined[name] = None if None in sizes else sum(sizes)
    backends = {name for stage in with_layers for name in (stage.get("backend") or "").split(", ") if name}
    joined["backend"] = ", ".join(sorted(backends)) or None
    return joined


@dataclass
class Stats:
    """What selection did."""

    steps_pruned: int = 0
    steps_bypassed: dict[str, int] = field(default_factory=dict)  # by reason
    samples: int = 0  # steps in which a server or vLLM counted experts
    by_layer: dict[str, list[float]] = field(default_factory=dict)  # those of FIGURES that were counted
    mean: dict[str, float] = field(default_factory=dict)  # of each over the layers


def since(before: dict[str, Any], now: dict[str, Any], figures: Sequence[str] = FIGURES) -> Stats:
    """What was counted between two answers of `xshare_stats`.

    Steps are never reset. The figures are means over samples, which a change of policy clears; there are none where no
    step was sampled.
    """
    bypassed = {
        reason: count - before["steps_bypassed"].get(reason, 0) for reason, count in now["steps_bypassed"].items()
    }
    at, until = before.get("samples", 0), now.get("samples", 0)
    if at > until:  # cleared in between
        at = 0
    stats = Stats(
        now["steps_pruned"] - before["steps_pruned"],
        {reason: count for reason, count in bypassed.items() if count},
        until - at,
    )
    for name in [name for name in figures if name in now] if until > at else ():
        old = before[name] if at else [0.0] * len(now[name])
        by_layer = [(b * until - a * at) / (until - at) for a, b in zip(old, now[name], strict=True)]
        stats.by_layer[name], stats.mean[name] = by_layer, sum(by_layer) / len(by_layer)
    return stats
