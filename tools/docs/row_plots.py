"""Plots instead of tables with many rows; the rows themselves are in docs/reference/rows/.

python tools/docs/row_plots.py [--evidence evidence] [--out docs/plots]
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from frontier_tables import scaled
from plots import MARKERS, ROOT, Row, bars
from quality_tables import SETTINGS
from speed_tables import REGIMES, deepest

from xshare.policy_text import current_policy_text
from xshare.report.labels import policy_label
from xshare.report.plot import need_matplotlib, new_axes, plot_tradeoff, put_names, save
from xshare.results.file import with_current_policies

Figure = tuple[Any, Any]


def rivals(results: Row, setting: tuple[int, int, bool]) -> Figure:
    """Points that each rival gains or loses against its reference policy, on the same questions."""
    batch, drafts, mixed = setting
    title = f"nano, batches of {batch}{f' with {drafts} drafts' if drafts else ''}, {'mixed' if mixed else 'one kind'}"
    figure, axes = new_axes(f"{title}: rival minus reference", "points of right answers", "")
    rows = [row for row in results["matched"] if (row["batch"], row["drafts"], row["mixed"]) == setting]
    references = list(dict.fromkeys(row["reference"] for row in rows))
    spelled = str if "format" in results else current_policy_text
    for place, reference in enumerate(references):
        at = [number for number, row in enumerate(rows) if row["reference"] == reference]
        rival_rows = [rows[number] for number in at]
        reach = [
            [100 * (r["change"] - r["low"]) for r in rival_rows],
            [100 * (r["high"] - r["change"]) for r in rival_rows],
        ]
        x, look = [100 * row["change"] for row in rival_rows], {"fmt": MARKERS[place], "capsize": 2}
        axes.errorbar(x, at, xerr=reach, label=f"reference {spelled(reference)}", **look)
    axes.axvline(0, color="grey", linestyle=":", linewidth=1)
    axes.set_yticks(range(len(rows)), [row["policy"] for row in rows], fontsize=7)
    axes.invert_yaxis()
    return figure, axes


def devices(results: Row) -> Figure:
    """Experts of the fullest device against the device budget, `level` and `rounds`, one colour per number of rows."""
    title = "DeepSeek-R1's shape over 8 devices, independent routing, k0=1, score=full"
    figure, axes = new_axes(title, "budget of a device, mg", "experts loaded on the fullest device")
    rows = [row for row in results["rows"] if row["regime"] == "independent"]
    for place, size in enumerate(dict.fromkeys(row["rows"] for row in rows)):
        at = [row for row in rows if row["rows"] == size]
        native = next(row for row in at if row["method"] == "native")
        for method, style in (("rounds", "--"), ("level", "-")):
            method_rows = [row for row in at if row["method"] == method]
            label = f"{size} rows (native {native['peak']:.1f}), {method}"
            x, y = [row["mg"] for row in method_rows], [row["peak"] for row in method_rows]
            look = {"fmt": f"{MARKERS[place]}{style}", "color": f"C{place}", "capsize": 2}
            axes.errorbar(x, y, yerr=bars(method_rows, "peak"), label=label, **look)
    return figure, axes


def by_cost(results: Row) -> Figure:
    """Step time against votes lost, plain and by cost, one colour per family of policies."""
    title = "gpt-oss-120b's shape on an H200, 16 requests, carried routing"
    figure, axes = new_axes(title, "votes lost, % of the tokens' own routing weight", "ms per step")
    for place, family in enumerate(dict.fromkeys(row["family"] for row in results["rows"])):
        for cost, style in ((False, "--"), (True, "-")):
            family_rows = [row for row in results["rows"] if (row["family"], row["cost"]) == (family, cost)]
            family_rows.sort(key=lambda row: float(row["votes_lost"]))
            x, y = [100 * row["votes_lost"] for row in family_rows], [row["ms"] for row in family_rows]
            label = f"{family}, {'by cost' if cost else 'plain'}"
            axes.plot(x, y, f"{MARKERS[place]}{style}", color=f"C{place}", markersize=4, linewidth=1, label=label)
    return figure, axes


def controls(results: Row) -> Figure:
    """Speed of selection that keeps all experts by batch: the earlier kernel, and today's."""
    figure, axes = new_axes("no-op control, no drafts", "requests decoded together", "of unmodified vLLM's speed")
    for of, name, style in (("rows", "selection before vLLM's routing", "--"), ("pooled", "one launch", "-")):
        for place, regime in enumerate(REGIMES):
            control_rows = [
                row
                for row in deepest(results, of)
                if (row["method"], row["regime"], row["drafts"]) == ("noop", regime, 0)
                and row["piece"] in ("plain", "presets")
            ]
            control_rows.sort(key=lambda row: int(row["batch"]))
            x, y = [row["batch"] for row in control_rows], [row["ratio"] for row in control_rows]
            look = {"fmt": f"{MARKERS[place]}{style}", "color": f"C{place}", "capsize": 2}
            axes.errorbar(x, y, yerr=bars(control_rows, "ratio"), label=f"{name}, {regime}", **look)
    axes.axhline(1, color="grey", linestyle=":", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks([4, 8, 16, 32], ["4", "8", "16", "32"])
    return figure, axes


def tried(results: Row, batch: int, drafts: int) -> Figure:
    """Points lost against the share of experts loaded: every policy tried, on both models."""
    after = f" with {drafts} drafts" if drafts else ""
    title = f"batches of {batch}{after}: on fresh questions where asked (filled)"
    figure, axes = new_axes(title, "experts loaded, % of native's", "points of right answers lost")
    for place, model in enumerate(("nano", "lab")):
        rows = [row for row in results["rows"] if (row["model"], row["batch"], row["drafts"]) == (model, batch, drafts)]
        rows = [row for row in rows if row["method"] != "native" and "score=full" not in row["policy"]]
        best = {row["policy"]: row for row in sorted(rows, key=lambda row: row["set"] == "confirming")}
        for fresh, fill in ((True, "full"), (False, "none")):
            shown_rows = [row for row in best.values() if (row["set"] == "confirming") == fresh]
            x, y = zip(*map(_spot, shown_rows), strict=True) if shown_rows else ((), ())
            reach = [[100 * bar for bar in side] for side in reversed(bars(shown_rows, "change"))]
            look = {"fmt": MARKERS[place], "color": f"C{place}", "fillstyle": fill, "capsize": 2, "elinewidth": 0.8}
            axes.errorbar(x, y, yerr=reach, label=f"{model}, {'3000 fresh' if fresh else '1000 to choose by'}", **look)
        if model == "nano":
            spots = {_spot(row): policy_label(scaled(row)) for row in best.values()}
    axes.axhline(0, color="grey", linestyle=":", linewidth=1)
    put_names(figure, axes, spots)
    return figure, axes


def _spot(row: Row) -> tuple[float, float]:
    return 100 * row["active"] / row["active_native"], -100 * row["change"]


def on_a_cpu(results: Row) -> Figure:
    """Microseconds per layer: the compiled selection, `route` around it, and the reference."""
    title = "16 rows, 64 experts, top-4, one core"
    figure, axes = new_axes(title, "microseconds per layer", "")
    for place, (column, name) in enumerate(
        (("selection_us", "selection"), ("route_us", "route"), ("reference_us", "reference"))
    ):
        at = [number + 0.27 * (place - 1) for number in range(len(results["rows"]))]
        axes.barh(at, [row[column] for row in results["rows"]], 0.27, label=name)
    axes.set_yticks(range(len(results["rows"])), [policy_label(row["policy"]) for row in results["rows"]], fontsize=8)
    axes.set_xscale("log")
    axes.invert_yaxis()
    return figure, axes


PLOTS: dict[str, tuple[str, Callable[[Row], Figure]]] = {
    "expert_parallel": ("paper_ep", devices),
    "cost_aware": ("cost_aware", by_cost),
    "controls": ("paper_speed", controls),
    "tried": ("frontier", partial(tried, batch=16, drafts=0)),
    "tried_drafts": ("frontier", partial(tried, batch=4, drafts=3)),
    "cpu_selection": ("cpu_selection", on_a_cpu),
}
PLOTS |= {f"rivals{name}": ("paper_quality", partial(rivals, setting=setting)) for name, setting in SETTINGS.items()}


def main(
    evidence: Annotated[Path, typer.Option(help="The folder of the result files.")] = ROOT / "evidence",
    out: Annotated[Path, typer.Option(help="The folder for the plots.")] = ROOT / "docs" / "plots",
) -> None:
    need_matplotlib()
    for name, (file, drawn) in PLOTS.items():
        figure, _ = drawn(with_current_policies(json.loads((evidence / f"{file}.json").read_text())))
        figure.legend(fontsize=7, ncols=3, loc="outside lower center")
        save(figure, out / f"{name}.svg")
    rows = with_current_policies(json.loads((evidence / "replay.json").read_text()))["rows"]
    plot_tradeoff(rows, out / "replay.svg", "gpt-oss-20b's routing, batches of 16")


if __name__ == "__main__":
    typer.run(main)
