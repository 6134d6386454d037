"""What an engine counts; and its counters, which it never sets back, as differences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
# What is counted of a step, by layer. An engine may count fewer.
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
    """The model's own numbers of layers by their names: model.layers.3.mlp.gate is 3. Their places where they have
    none."""
    found = [LAYER.search(name) for name in names]
    return tuple(place if number is None else int(number[1]) for place, number in enumerate(found))


def over_workers(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One answer to `xshare_stats` from those of all workers: ranks of a pipeline stage have the same layers and have
    counted the same, stages have layers of their own. Layers come in the model's order."""
    stages: dict[tuple[str, ...], dict[str, Any]] = {}
    for answer in answers:
        stages.setdefault(tuple(answer["layers"]), answer)
    if len(stages) == 1:
        return dict(answers[0])
    having = [stage for layers, stage in stages.items() if layers]
    names = [name for stage in having for name in stage["layers"]]
    order = sorted(range(len(names)), key=lambda place: layer_numbers(names)[place])
    found = dict(having[0]) | {"layers": [names[place] for place in order]}
    for figure in BY_LAYER:
        if all(figure in stage for stage in having):
            values = [value for stage in having for value in stage[figure]]
            found[figure] = [values[place] for place in order]
    for name in ("experts", "top_k"):
        found[name] = max(stage[name] for stage in having)
    for name in ("expert_bytes", "host_layers", "routed_layers"):
        each = [stage[name] for stage in having if name in stage]
        found[name] = None if None in each else sum(each)
    backends = {name for stage in having for name in (stage.get("backend") or "").split(", ") if name}
    found["backend"] = ", ".join(sorted(backends)) or None
    return found


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
    for name in [name for name in figures if name in now] if until > at else ():
        old = before[name] if at else [0.0] * len(now[name])
        by_layer = [(b * until - a * at) / (until - at) for a, b in zip(old, now[name], strict=True)]
        found.by_layer[name], found.mean[name] = by_layer, sum(by_layer) / len(by_layer)
    return found
