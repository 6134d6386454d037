"""Plots, from the same rows as the tables. matplotlib is imported only when a plot is asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from xshare.errors import XShareError
from xshare.files import check_writable, whole_file
from xshare.report.point_labels import Spot, place
from xshare.results import Row
from xshare.results.columns import required_interval


def check_plot(path: Path) -> None:
    """Refuse what cannot be drawn before any work is done."""
    if path.suffix not in (".png", ".svg"):
        raise XShareError(f"plot {str(path)!r} must end in .png or .svg")
    need_matplotlib()
    check_writable(path)


def need_matplotlib() -> None:
    if find_spec("matplotlib") is None:
        raise XShareError("plots need matplotlib: pip install 'xshare[plot]'")


def plot_curve(rows: Sequence[Row], path: Path, title: str) -> None:
    """Active experts against batch size, beside the closed form for independent uniform routing."""
    figure, axes = new_axes(title, "requests in the batch", "active experts per layer")
    sizes = sorted({row["batch"] for row in rows})
    closed = {row["batch"]: row["closed_form"] for row in rows}
    axes.plot(sizes, [closed[size] for size in sizes], "--", color="grey", label="independent uniform routing")
    for policy in dict.fromkeys(row["policy"] for row in rows):
        policy_rows = [row for row in rows if row["policy"] == policy]
        line = axes.plot(
            [row["batch"] for row in policy_rows], [row["active"] for row in policy_rows], "o-", label=policy
        )
        low, high = zip(*(required_interval(row, "active") for row in policy_rows), strict=True)
        axes.fill_between([row["batch"] for row in policy_rows], low, high, color=line[0].get_color(), alpha=0.2)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_ylim(bottom=0)
    _save(figure, axes, path)


def plot_overlap(rows: Sequence[Row], path: Path, title: str) -> None:
    """Overlap of two tokens' top sets, one bar per kind of pair, and the overlap by chance."""
    figure, axes = new_axes(title, "size of the sets", "experts in common")
    tops = sorted({row["top"] for row in rows})
    kinds = list(dict.fromkeys(row["pair"] for row in rows))
    width = 0.8 / len(kinds)
    for number, kind in enumerate(kinds):
        by_top = {row["top"]: row for row in rows if row["pair"] == kind}
        height = [by_top[top]["overlap"] for top in tops]
        low, high = zip(*(required_interval(by_top[top], "overlap") for top in tops), strict=True)
        error = [[at - end for at, end in zip(height, low, strict=True)]]
        error += [[end - at for at, end in zip(height, high, strict=True)]]
        axes.bar([x + number * width for x in range(len(tops))], height, width, yerr=error, capsize=3, label=kind)
    for x, top in enumerate(tops):
        chance = next(row["chance"] for row in rows if row["top"] == top)
        axes.hlines(chance, x - width / 2, x + 0.8 - width / 2, colors="grey", linestyles="dashed")
    axes.set_xticks([x + 0.4 - width / 2 for x in range(len(tops))], [str(top) for top in tops])
    axes.plot([], [], "--", color="grey", label="chance")
    _save(figure, axes, path)


def plot_tradeoff(rows: Sequence[Row], path: Path, title: str) -> None:
    """Gating mass kept against active experts, one point per policy."""
    figure, axes = new_axes(title, "active experts per layer", "gating mass kept")
    names: dict[Spot, str] = {}  # policies at the same spot share one name
    for row in rows:
        spot = row["active"], row["mass"]
        names[spot] = f"{names[spot]} = {row['policy']}" if spot in names else row["policy"]
    dots = [axes.plot(*spot, "o", label=name, clip_on=False)[0] for spot, name in names.items()]
    left_out = put_names(figure, axes, names)
    if left_out:
        axes.legend(handles=[dot for dot in dots if dot.get_label() in left_out], fontsize=8)
    save(figure, path)


def put_names(figure: Any, axes: Any, names: dict[Spot, str]) -> list[str]:
    """Draw names beside their points, inside the axes and clear of each other; returns those without room."""
    axes.margins(0.12)
    figure.draw_without_rendering()  # settles where the axes are
    unit = figure.dpi / 72  # pixels of a typographic point
    look = {"textcoords": "offset points", "fontsize": 8, "va": "center", "in_layout": False}
    notes = [axes.annotate(name, spot, (0, 0), **look) for spot, name in names.items()]
    extents = [note.get_window_extent() for note in notes]
    spots = [(x / unit, y / unit) for x, y in axes.transData.transform(list(names))]
    inside = [end / unit for end in axes.get_window_extent().extents]
    placed = place(spots, [(box.width / unit, box.height / unit) for box in extents], [], inside)
    for note, (x, y), put in zip(notes, spots, placed, strict=True):
        if put is None:
            note.remove()
            continue
        note.set(position=(put.at[0] - x, put.at[1] - y), ha="right" if put.ends else "left")
        if put.thread is not None:
            thread = {"arrowstyle": "-", "color": "grey", "lw": 0.6, "shrinkA": 0, "shrinkB": 3}
            start = (put.thread[0] - x, put.thread[1] - y)
            axes.annotate("", note.xy, xytext=start, textcoords="offset points", arrowprops=thread, in_layout=False)
    return [name for name, put in zip(names.values(), placed, strict=True) if put is None]


def plot_kernel(rows: Sequence[Row], path: Path, title: str) -> None:
    """Marginal microseconds of the selection against rows, one line per number of experts, and of what it replaces."""
    figure, axes = new_axes(title, "rows", "marginal microseconds per layer")
    batch = [row for row in rows if row["router"] == "softmax" and "m=" in row["policy"]]
    batch = [row for row in batch if not any(other in row["policy"] for other in ("mr=", "score="))]
    for N, k in dict.fromkeys((row["experts"], row["k"]) for row in batch):
        for impl, style in (("reference", ":"), ("fused", "o-"), ("fused-off", "--")):
            if impl != "fused" and (N, k) != (128, 4):
                continue  # these hardly depend on the shape
            points = sorted(
                (r["n"], r["marginal_us"]) for r in batch if (r["impl"], r["experts"], r["k"]) == (impl, N, k)
            )
            name = f"{N} experts, top-{k}" if impl == "fused" else f"{impl}, {N} experts"
            axes.plot(*zip(*points, strict=True), style, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    _save(figure, axes, path)


def plot_load(rows: Sequence[Row], path: Path, title: str) -> None:
    """Load of each expert relative to an even load: one row of cells per layer, the most used experts first."""
    figure, axes = new_axes(f"{title}: load of the experts, 1 is even", "experts of a layer, by load", "layer")
    load = [sorted(row["load"], reverse=True) for row in rows]
    image = axes.imshow(load, aspect="auto", vmin=0, cmap="viridis", interpolation="nearest")
    axes.set_yticks(range(len(rows)), [str(row["layer"]) for row in rows])
    axes.grid(visible=False)
    figure.colorbar(image, ax=axes)
    _save(figure, axes, path, legend=False)


def new_axes(title: str, x: str, y: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # not pyplot: no global state, no display needed

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    return figure, axes


def _save(figure: Any, axes: Any, path: Path, legend: bool = True) -> None:
    if legend:
        axes.legend(fontsize=8)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Write a PNG or SVG. An SVG is small and reproducible: text stays text, without dates or random ids."""
    from matplotlib import rc_context

    svg = path.suffix == ".svg"
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem}), whole_file(path) as temporary:
        figure.savefig(temporary, dpi=150, metadata={"Date": None} if svg else None)
        if svg:
            temporary.write_text(compact(temporary.read_text()))


def compact(svg: str) -> str:
    """The same picture in fewer bytes: coordinates to a hundredth of a point, no group ids, one font with fallbacks,
    no line breaks between strokes."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"(\d\.\d\d)\d+", r"\1", svg)
    svg = re.sub(r"font-family: 'DejaVu Sans'[^;\"]*", "font-family: 'DejaVu Sans', Verdana, sans-serif", svg)
    svg = re.sub(r' transform="rotate\(-0 [^"]*\)"', "", svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"\s*\n\s*([MLCQz])\s*", r"\1", svg)
    return re.sub(r"\s*\n\s*", " ", re.sub(r">\s+<", "><", svg)) + "\n"
