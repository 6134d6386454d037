"""How `xshare watch` shows a server: on a terminal, and as a JSON object."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from xshare.cli.output import number_table
from xshare.engines.counters import Stats
from xshare.engines.server_metrics import Between
from xshare.policy import Policy
from xshare.report.labels import policy_label

AROUND = 13  # lines of a view apart from layers and reasons
FEWEST = 4  # layers shown even on a small terminal
COLUMNS = {  # of the table by layer
    "native": ("experts_native", 1),
    "loaded": ("experts_active", 1),
    "weight kept": ("mass_kept", 3),
    "smallest share": ("smallest_kept", 3),
    "below half": ("rows_below_half", 3),
    "for protected": ("experts_protected", 1),
}


def policy_name(between: Between) -> str:
    """The policy of the server, with its preset's name if it has one."""
    try:
        return policy_label(Policy.parse(between.last.policy))
    except ValueError:  # written by another version of xshare
        return between.last.policy


def least_kept(stats: Stats) -> tuple[float, int] | None:
    """The smallest share kept over all layers, and its layer."""
    values = stats.by_layer.get("smallest_kept")
    return min((value, layer) for layer, value in enumerate(values)) if values else None


def record(url: str, between: Between, trouble: str | None = None) -> dict[str, Any]:
    last, stats = between.last, between.experts
    least = least_kept(stats)
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "url": url,
        "trouble": trouble,
        "model": last.model,
        "policy": last.policy,
        "on": last.on,
        "cost": last.cost,
        "window_s": round(between.seconds, 3),
        "tokens_per_s": between.tokens_per_s,
        "prompt_tokens_per_s": between.prompt_tokens_per_s,
        "requests_running": last.running,
        "requests_waiting": last.waiting,
        "steps_acted_on": last.counted["steps_pruned"],
        "steps_acted_on_per_s": between.steps_per_s(),
        "steps_left_alone": last.counted["steps_bypassed"],
        "samples": stats.samples,
        **{name: stats.mean.get(name) for name in ("experts_native", "experts_active", "mass_kept", "rows_protected")},
        "smallest_kept": least and least[0],
        "by_layer": {name: values for name, values in stats.by_layer.items() if name != "rows_protected"},
    }


def view(url: str, between: Between, height: int | None = None, trouble: str | None = None) -> RenderableType:
    """`height`: lines of the terminal. If not all layers fit, only those that keep the least are shown; None: all."""
    last, stats = between.last, between.experts
    state = "on" if last.on else "OFF"
    by_cost = ", by cost" if last.cost else ""
    lines: list[RenderableType] = [
        Text(f"{last.model} at {url}"),
        Text.assemble((f"{policy_name(between)}{by_cost}: {state}", "bold" if last.on else "bold red")),
        Text(
            f"{rate(between.tokens_per_s)} tokens/s, {rate(between.prompt_tokens_per_s)} of prompts, "
            f"{last.running} requests running, {last.waiting} waiting"
        ),
        Text(),
        steps(between),
        Text(),
    ]
    lines += [Text(line) for line in summary(between, stats)]
    if stats.samples:
        room = None if height is None else height - AROUND - len(last.counted["steps_bypassed"])
        lines += layers(stats, room)
    if trouble is not None:
        lines.append(Text(f"{trouble}; this is the last that was seen", style="red"))
    return Group(*lines)


def rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def steps(between: Between) -> Table:
    table = plain_table("steps", "a second", "since start")
    counted = between.last.counted
    table.add_row("acted on", rate(between.steps_per_s()), f"{counted['steps_pruned']:,}")
    for reason, count in sorted(counted["steps_bypassed"].items(), key=lambda item: -item[1]):
        table.add_row(f"left alone: {reason}", rate(between.steps_per_s(reason)), f"{count:,}")
    return table


def summary(between: Between, stats: Stats) -> list[str]:
    if not stats.samples:
        return ["No step has been sampled since the last change of policy: nothing is known of experts."]
    when = f"the last {between.seconds:.0f} s" if between.stats.samples else "all since the last change of policy"
    native, active = stats.mean["experts_native"], stats.mean["experts_active"]
    least = least_kept(stats)
    lowest = "" if least is None else f", smallest share kept {least[0]:.3f} (layer {least[1]})"
    return [
        f"Per layer, mean of {stats.samples} sampled steps, {when}:",
        f"experts loaded {active:.1f} of {native:.1f} ({active / native if native else 1:.0%}), weight kept "
        f"{stats.mean['mass_kept']:.3f}{lowest}",
        f"protected rows {stats.mean.get('rows_protected', 0):.1f} per step",
    ]


def layers(stats: Stats, most: int | None) -> list[RenderableType]:
    """A table, and above it a line if layers are left out."""
    numbers, heading = list(range(len(stats.by_layer["experts_native"]))), ""
    if most is not None and len(numbers) > max(FEWEST, most):
        kept = stats.by_layer["smallest_kept"]
        numbers = sorted(sorted(numbers, key=lambda layer: kept[layer])[: max(FEWEST, most)])
        heading = f"{len(numbers)} of {len(kept)} layers, those that keep the smallest shares:"
    shown = {title: of for title, of in COLUMNS.items() if of[0] in stats.by_layer}
    table = plain_table("layer", *shown)
    for layer in numbers:
        table.add_row(str(layer), *(f"{stats.by_layer[name][layer]:.{digits}f}" for name, digits in shown.values()))
    return [Text(heading), table]


def plain_table(first: str, *columns: str) -> Table:
    table = number_table("", first, *columns)
    table.title = None  # an empty title would take a line
    return table
