"""The page: sections that are there when there is data for them, and nothing that is fetched or run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from xshare.report.html import EMPTY, Html, join, tag
from xshare.report.inline import plain, plot
from xshare.report.law import draw_laws, laws
from xshare.report.layers import MOST, by_layer, draw_layers
from xshare.report.pareto import LABELS, draw_plane, planes
from xshare.report.plot import draw_curve
from xshare.report.read import ResultFile
from xshare.report.regime import by_regime, spelled, spelled_all
from xshare.report.tables import file_table
from xshare.results import Row
from xshare.results.columns import ends, number
from xshare.version import __version__

# Nothing may be loaded or run, whatever is in a file: the browser sees to it.
SEALED = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
TITLES = {"git": "commit", "argv": "command", "time": "measured"}


def page(files: list[ResultFile], notes: list[str], title: str) -> str:
    sections = [
        ("pareto", "Speed against quality", _pareto(files)),
        ("layers", "Active experts by layer", _layers(files)),
        ("law", "What an expert costs", _law(files)),
        ("curve", "Active experts against batch size", _curve(files)),
        ("tables", "All results", _tables(files)),
        ("notes", "Notes", tag("ul", *(tag("li", note) for note in notes)) if notes else EMPTY),
    ]
    sections = [section for section in sections if section[2]]
    links = tag("nav", *(tag("a", heading, href=f"#{name}") for name, heading, _ in sections), aria_label="Sections")
    body = [
        tag("section", tag("h2", heading), content, id=name, aria_label=heading) for name, heading, content in sections
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=SEALED),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Html(Path(__file__).with_name("page.css").read_text())),
    )
    made = tag("footer", tag("p", f"Made by xshare {__version__}. Everything is in this file."))
    main = tag("main", tag("h1", title), _header(files), links, *body)
    return "<!doctype html>\n" + tag("html", head, tag("body", main, made), lang="en") + "\n"


def _header(files: list[ResultFile]) -> Html:
    stamps = [stamp for file in files for stamp in (file.provenance, *file.later)]
    dates = sorted(str(stamp["time"])[:10] for stamp in stamps if stamp.get("time"))
    models = dict.fromkeys(str(m) for f in files if (m := f.provenance.get("model") or f.provenance.get("shape")))
    gpus = dict.fromkeys(str(gpu) for f in files if (gpu := f.provenance.get("gpu")))
    facts = [f"{len(files)} result file{'s' if len(files) != 1 else ''}"]
    if dates:
        facts.append("measured " + (dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"))
    facts += [", ".join(found) for found in (models, gpus) if found]
    return join(tag("p", " · ".join(facts), class_="lead"), *map(_provenance, files))


def _provenance(file: ResultFile) -> Html:
    """What was measured, when and under which conditions; how, when opened."""
    when = str(file.provenance.get("time", ""))[:10]
    facts = [file.kind or "columns of no known kind", spelled_all(file)]
    summary = tag(
        "summary", tag("strong", file.name), " ", ", ".join(fact for fact in facts if fact), " ", tag("time", when)
    )
    later = [join(tag("p", "Gone on with by a later run:"), _facts(stamp)) for stamp in file.later]
    return tag("details", summary, _facts(file.provenance), *later)


def _facts(stamp: Row) -> Html:
    named = {TITLES.get(name, name): _fact(value) for name, value in stamp.items() if value is not None}
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", fact)) for name, fact in named.items()))


def _fact(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def _pareto(files: list[ResultFile]) -> Html:
    figures: list[Html] = []
    for count, plane in enumerate(planes(files)):
        best = ", ".join(point.policy for point in plane.front())
        label = f"{LABELS[plane.quality]} against {LABELS[plane.speed]}, {len(plane.points)} policies; front: {best}"
        caption = f"{plane.source}. On the front: {best}."
        figures.append(plot(partial(draw_plane, plane), f"pareto{count}", label, caption))
    return _grid(
        figures,
        "Up and right is better. Bars are 95 % intervals, where the file has them. "
        "No policy beats one on the front in both.",
    )


def _layers(files: list[ResultFile]) -> Html:
    figures: list[Html] = []
    for file in files:
        for regime, rows in by_regime(file, file.rows):
            if layers := by_layer(rows):
                left = len(layers) - MOST
                layers = dict(list(layers.items())[:MOST])
                label = f"Active experts in each layer: {', '.join(layers)}"
                name = f"layers{len(figures)}"
                caption = _caption(file, spelled(regime)) + (f"; {left} more in the tables" if left > 0 else "")
                figures.append(plot(partial(draw_layers, layers), name, label, caption))
    return _grid(figures, "What a step loads in each layer, beside what native routing would load.")


def _law(files: list[ResultFile]) -> Html:
    figures: list[Html] = []
    for file in files:
        found = list(laws(file))
        for conditions in dict.fromkeys(law.but_batch for law in found):
            alike = [law for law in found if law.but_batch == conditions]
            said = "; ".join(law.spelled() for law in alike)
            name = f"law{len(figures)}"
            label = f"Time of a step against active experts: {said}"
            figures.append(plot(partial(draw_laws, alike), name, label, f"{file.name}. {said}."))
    return _grid(figures, "Time of a decode step against the experts it loads, and the line step = a + b·T.")


def _curve(files: list[ResultFile]) -> Html:
    figures: list[Html] = []
    for file in files:
        whole = [row for row in file.rows if "closed_form" in row and row.get("layer") is None]
        for regime, rows in by_regime(file, whole, but="batch"):
            points = [point for row in rows if (point := _curve_point(row)) is not None]
            if points:
                points.sort(key=lambda point: point["batch"])
                label = f"Active experts against batch size: {', '.join(dict.fromkeys(p['policy'] for p in points))}"
                name = f"curve{len(figures)}"
                figures.append(plot(partial(draw_curve, points), name, label, _caption(file, spelled(regime))))
    return _grid(figures, "The dashed line is what independent, uniform choices would load.")


def _curve_point(row: Row) -> Row | None:
    """What is drawn of a row, if all of it is there."""
    batch, active, closed = (number(row.get(column)) for column in ("batch", "active", "closed_form"))
    if batch is None or batch < 1 or active is None or closed is None:
        return None
    low, high = ends(row, "active") or (active, active)
    point = {"policy": plain(row.get("policy", "all rows")), "batch": int(batch), "active": active}
    return point | {"closed_form": closed, "active_low": low, "active_high": high}


def _caption(file: ResultFile, conditions: str) -> str:
    return f"{file.name}: {conditions}." if conditions else f"{file.name}."


def _grid(figures: list[Html], words: str) -> Html:
    return join(tag("p", words), tag("div", *figures, class_="figures")) if figures else EMPTY


def _tables(files: list[ResultFile]) -> Html:
    return join(*(join(tag("h3", f"{file.name}: {file.kind or 'results'}"), file_table(file)) for file in files))
