"""Draw what policies do to speed and answers, from evidence/*.json: docs/plots/*.svg.

python tools/docs/plots.py [--evidence evidence] [--out docs/plots]

A file that is not there is named, and nothing is drawn of it. Files of the larger model end in `_lab`, and so do the
plots of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from quality_tables import by_mates, named_row, today
from speed_tables import REGIMES, deepest

from xshare.policy import RECOMMENDED, Policy
from xshare.report.labels import policy_label
from xshare.report.plot import need_matplotlib, new_axes, save
from xshare.results.columns import count_of
from xshare.statistics import interval_names

ROOT = Path(__file__).resolve().parents[2]
MARKERS = "osD^vPX*<>hd"
FEW = 6  # policies, the control among them; with fewer a table says it all
OTHER = ", score=topk"  # in the name of a line
Row = dict[str, Any]
Draw = Callable[[Row], tuple[Any, Any]]


def line_of(row: Row) -> str:
    """The line that a row belongs to: its method, for XShare with its warm-up and score."""
    if row["method"] != "xshare":
        return str(row["method"])
    budget = "mr" if "mr=" in row["policy"] else "m"
    score = OTHER if "score=topk" in row["policy"] else ""
    return f"xshare {row['policy'].split(',')[0]}, {budget}{score}"


def bars(rows: Sequence[Row], name: str) -> list[list[float]]:
    """How far intervals reach down and up, for matplotlib; clipped at 0, since rounding may leave a little less."""
    ends = [(row[name] - row[f"{name}_low"], row[f"{name}_high"] - row[name]) for row in rows]
    return [[max(0.0, end[side]) for end in ends] for side in (0, 1)]


def pareto(results: Row, quality: str, setting: tuple[int, int, bool]) -> tuple[Any, Any]:
    """Accuracy or KL against active experts, one line per method, in one setting."""
    rows = [r for r in results["rows"] if (r["batch"], r["drafts"], r["mixed"]) == setting]
    batch, drafts, mixed = setting
    mates = "mixed" if mixed else "one kind at a time"
    after = f", {drafts} drafts" if drafts else ""
    title = f"{rows[0]['model']}: {rows[0]['questions']} questions, batches of {batch}{after}, {mates}"
    figure, axes = new_axes(
        title, "active experts per layer", "accuracy" if quality == "accuracy" else "KL, nats per token"
    )
    native = next(row for row in rows if row["method"] == "native")
    axes.axvline(native["active"], color="grey", linestyle=":", linewidth=1)
    if quality == "accuracy":
        axes.axhline(native["accuracy"], color="grey", linestyle=":", linewidth=1, label="native")
    drawn = [row for row in rows if row["method"] != "native" and row["paper"] != "no-op control"]
    names = list(dict.fromkeys(map(line_of, drawn)))
    alone = list(dict.fromkeys(name.removesuffix(OTHER) for name in names))
    for name in names:
        place = alone.index(name.removesuffix(OTHER))  # both scores of a line have its colour
        line = sorted((row for row in drawn if line_of(row) == name), key=lambda row: float(row["active"]))
        x, y = [row["active"] for row in line], [row[quality] for row in line]
        style = "-." if name.endswith(OTHER) else "-" if name.startswith("xshare") else "--"
        fmt, color = MARKERS[place % len(MARKERS)] + style, f"C{place}" if place < 10 else ("black", "gold")[place % 2]
        fill = "none" if name.endswith(OTHER) else "full"
        look = {"fmt": fmt, "color": color, "fillstyle": fill, "capsize": 2, "elinewidth": 0.8}
        axes.errorbar(x, y, yerr=bars(line, quality), label=name, **look)
    if quality == "kl" and all(row["kl"] > 0 for row in drawn):
        axes.set_yscale("log")
    return figure, axes


def scatter(results: Row) -> tuple[Any, Any]:
    """Mass lost and KL, one point per step; one layer pruned, or all."""
    overall = next(r for r in results["correlation"] if r["layer"] is None and r["policy"] is None and r["steps"])
    title = f"a step's gating mass lost and KL; all layers pruned: Spearman {overall['spearman']:.2f}"
    figure, axes = new_axes(title, "gating mass lost", "KL of the next token, nats")
    for layer in dict.fromkeys(point["layer"] for point in results["points"]):
        points = [point for point in results["points"] if point["layer"] == layer and point["kl"] > 0][
            ::2
        ]  # of a sample
        name, size = ("all layers", 3.7) if layer is None else (f"layer {layer} alone", 2.6)
        dots = {"marker": "o", "linestyle": "", "markersize": size, "alpha": 0.6, "markeredgewidth": 0}
        axes.plot([p["mass_lost"] for p in points], [p["kl"] for p in points], label=name, **dots)
    axes.set_yscale("log")
    return figure, axes


def overlap(results: Row) -> tuple[Any, Any]:
    """Experts that two tokens share, one curve per kind of pair, and chance."""
    figure, axes = new_axes("experts that two tokens have in common", "size of their top sets", "experts in common")
    for place, pair in enumerate(dict.fromkeys(row["pair"] for row in results["overlap"])):
        rows = [row for row in results["overlap"] if row["pair"] == pair]
        axes.plot([row["top"] for row in rows], [row["overlap"] for row in rows], f"{MARKERS[place]}-", label=pair)
    chance = dict.fromkeys((row["top"], row["chance"]) for row in results["overlap"])
    axes.plot(*zip(*chance, strict=True), "--", color="grey", label="chance")
    return figure, axes


def layers(results: Row) -> tuple[Any, Any]:
    """KL of each layer pruned alone, one line per policy."""
    figure, axes = new_axes("one layer pruned, the others native", "layer", "KL of the next token, nats")
    for place, name in enumerate(dict.fromkeys(row["policy"] for row in results["layers"])):
        rows = [row for row in results["layers"] if row["policy"] == name and row["layer"] is not None]
        axes.errorbar(
            [row["layer"] for row in rows],
            [row["kl"] for row in rows],
            yerr=bars(rows, "kl"),
            fmt=f"{MARKERS[place % len(MARKERS)]}-",
            capsize=2,
            label=name,
        )
    axes.set_xticks(sorted({row["layer"] for row in results["layers"] if row["layer"] is not None}))
    axes.set_yscale("log")
    return figure, axes


def neighbours(results: Row) -> tuple[Any, Any]:
    """Shares of prompts whose text, and whose correctness, depends on the neighbours."""
    figure, axes = new_axes("the same prompt with other mates in its batch", "share of the prompts", "")
    rows = by_mates(results["rows"])
    names = [f"{today(results, row['policy'])}, {'mixed' if row['mixed'] else 'alike'}" for row in rows]
    for shift, (column, name) in zip(
        (-0.2, 0.2), (("changed", "text changes"), ("flipped", "right or wrong")), strict=True
    ):
        value = [row[column] for row in rows]
        at = [place + shift for place in range(len(names))]
        axes.barh(at, value, 0.4, xerr=bars(rows, column), capsize=2, label=name)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    return figure, axes


def speed(results: Row) -> tuple[Any, Any]:
    """Gain against active experts at batch 16, the law of each regime, and the paper's ranges for the same policies."""
    title = "gpt-oss-120b's shape on an H200, batch 16, no drafts, score=full"
    figure, axes = new_axes(title, "active experts per layer", "output tokens per second, against unmodified vLLM")
    for place, regime in enumerate(REGIMES):
        rows = [r for r in deepest(results) if (r["piece"], r["regime"], r["batch"]) == ("plain", regime, 16)]
        if not rows:
            continue
        native = next(row for row in rows if row["method"] == "native")
        shown = [row for row in rows if row["method"] in ("xshare", "noop")]
        x, y = [row["active"] for row in shown], [row["ratio"] for row in shown]
        color = f"C{place}"
        name = f"{regime}, {interval_names([count_of(row, 'ratio') for row in shown if row['method'] == 'xshare'])[0]}"
        axes.errorbar(x, y, yerr=bars(shown, "ratio"), fmt=MARKERS[place], color=color, capsize=2, label=name)
        line = [min(x) + step * (native["active"] - min(x)) / 40 for step in range(41)]
        predicted_ms = [native["step_ms"] - native["b"] * (native["active"] - at) for at in line]
        law = [native["step_ms"] / ms for ms in predicted_ms]
        axes.plot(
            line, law, "-", color=color, linewidth=1, label=f"{regime}: {native['a']:.2f} + {native['b']:.4f} T ms"
        )
        with_range = [row for row in shown if row["paper_high"]]
        low, high = [row["paper_low"] for row in with_range], [row["paper_high"] for row in with_range]
        paper = "the paper's range" if place == 0 else None
        axes.vlines([row["active"] for row in with_range], low, high, color="grey", linewidth=5, alpha=0.4, label=paper)
    return figure, axes


def staircase(results: Row) -> tuple[Any, Any]:
    """Time of a step by the size of its set, one line per number of rows."""
    about = results["provenance"]
    title = f"{about['device']}, {about['layers']} layers of {about['experts']} experts"
    figure, axes = new_axes(title, "experts of a set", "ms per step")
    for rows in sorted({row["batch"] for row in results["rows"]}):
        by_experts = sorted((row for row in results["rows"] if row["batch"] == rows), key=lambda row: row["experts"])
        sizes, low, high = ([row[name] for row in by_experts] for name in ("experts", "ms_low", "ms_high"))
        axes.fill_between(sizes, low, high, alpha=0.3, linewidth=0)
        axes.plot(sizes, [row["ms"] for row in by_experts], linewidth=1, label=f"{rows} rows")
    return figure, axes


def gain_and_loss(speed: Row, frontier: Row, quality: Row) -> tuple[Any, Any]:
    """Speedup on an H200 against points lost by nano: the presets, and the paper's policies by `score=full`."""
    figure, axes = new_axes(
        "gpt-oss-120b's shape on an H200, vLLM, 16 requests; answers of nano",
        "points of right answers lost",
        "times as fast as vLLM",
    )
    where = {"regime": "carried", "piece": "presets", "batch": 16}
    near = {row["policy"]: row for row in speed["pooled"] if where.items() <= row.items()}
    where = {"model": "nano", "set": "confirming", "batch": 16, "drafts": 0}
    answered = {row["policy"]: row for row in frontier["rows"] if where.items() <= row.items()}
    ours = {name: (str(policy := Policy.parse(name)), near[str(policy)], answered[str(policy)]) for name in RECOMMENDED}
    timed = [row for row in deepest(speed) if (row["piece"], row["regime"], row["batch"]) == ("plain", "carried", 16)]
    theirs = {
        row["policy"].removesuffix(",score=full"): (row["policy"], row, lost)
        for row in timed
        if row["method"] == "xshare" and (lost := named_row(quality, row["policy"], (16, 0, True)))
    }
    for kind, plotted, marker, size in (("presets", ours, "o", 9), ("the paper's, score=full", theirs, "s", 6)):
        points = [(-100 * lost["change"], row["ratio"]) for _, row, lost in plotted.values()]
        axes.plot(*zip(*points, strict=True), marker, markersize=size, label=kind)
        for name, point in zip(plotted, points, strict=True):
            axes.annotate(name, point, xytext=(6, 5), textcoords="offset points", fontsize=8)
    axes.set_xscale("symlog", linthresh=5)
    axes.set_xlim(left=0, right=250)
    axes.set_xticks([0, 1, 2, 5, 10, 20, 50, 100], ["0", "1", "2", "5", "10", "20", "50", "100"])
    return figure, axes


def protected(results: Row) -> tuple[Any, Any]:
    """Experts per step by the share of protected requests, one line per policy."""
    rows = [row for row in results["rows"] if row["layer"] is None]
    first = rows[0]
    title = f"{results['provenance']['model']}: batches of {first['batch']}, {first['batches']} of them, from a trace"
    figure, axes = new_axes(title, f"protected requests, of {first['batch']}", "active experts per layer")
    for place, name in enumerate(dict.fromkeys(row["policy"] for row in rows if row["method"] != "native")):
        line = sorted((row for row in rows if row["policy"] == name), key=lambda row: float(row.get("protected", 0)))
        x, y = [row.get("protected_requests", 0) for row in line], [row["active"] for row in line]
        axes.errorbar(x, y, bars(line, "active"), fmt=MARKERS[place] + "-", capsize=2, label=policy_label(name))
    native = next(row for row in rows if row["method"] == "native")
    axes.axhline(native["active"], color="grey", linestyle=":", linewidth=1, label="native")
    axes.set_ylim(bottom=0)
    return figure, axes


def plots(results: Row) -> dict[str, Draw]:
    """The plots that a result file has data for, by name."""
    if any("mass_shared" in row and "protected" in row for row in results["rows"]):
        return {"protected": protected}
    if "points" in results:
        drawn: dict[str, Draw] = {"mass_and_kl": scatter, "token_overlap": overlap, "pruned_layers": layers}
        return {name: draw for name, draw in drawn.items() if results[LISTS[name]]}
    if results["rows"] and "piece" in results["rows"][0]:
        return {"speed": speed}
    if results["rows"] and "ms_low" in results["rows"][0]:
        return {"staircase": staircase}
    if results["rows"] and "changed" in results["rows"][0]:
        return {"neighbours": neighbours}
    settings = Counter((r["batch"], r["drafts"], r["mixed"]) for r in results["rows"] if r["method"] != "native")
    drawings: dict[str, Draw] = {}
    for batch, drafts, mixed in (setting for setting, policies in settings.items() if policies >= FEW):
        for quality in ("accuracy", "kl"):
            name = f"pareto_{quality}" + ("_drafts" if drafts else "") + ("" if mixed else "_alike")
            drawings[name] = partial(pareto, quality=quality, setting=(batch, drafts, mixed))
    return drawings


LISTS = {"mass_and_kl": "points", "token_overlap": "overlap", "pruned_layers": "layers"}


def draw(files: Sequence[Path], out: Path) -> list[Path]:
    written = []
    for file in files:
        if not file.is_file():
            typer.echo(f"{file} is not there: no plot of it")
            continue
        results = json.loads(file.read_text())
        suffix = "_lab" if file.stem.endswith("_lab") else ""
        for name, drawn in plots(results).items():
            path = out / f"{name}{suffix}.svg"
            figure, axes = drawn(results)
            axes.legend(fontsize=7)
            save(figure, path)
            written.append(path)
    return written


def main(
    evidence: Annotated[Path, typer.Option(help="The folder of the result files.")] = ROOT / "evidence",
    out: Annotated[Path, typer.Option(help="The folder for the plots.")] = ROOT / "docs" / "plots",
) -> None:
    need_matplotlib()
    names = [
        f"{name}{suffix}.json" for suffix in ("", "_lab") for name in ("paper_quality", "assumptions", "neighbours")
    ]
    whole = [evidence / f"{name}.json" for name in ("paper_speed", "frontier", "paper_quality")]
    if all(path.is_file() for path in whole):
        figure, axes = gain_and_loss(*(json.loads(path.read_text()) for path in whole))
        axes.legend(fontsize=8, loc="upper left")
        save(figure, out / "gain_and_loss.svg")
    names += ["replay_protected.json"]
    for path in draw([evidence / name for name in ("paper_speed.json", "staircase.json", *names)], out):
        typer.echo(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    typer.run(main)
