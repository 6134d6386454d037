"""The page: the answer first, the rest folded; sections that are there when there is data for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xshare.progress import Advance, quiet
from xshare.report import curve, law, layers, pareto, staircase
from xshare.report.conditions import by_regime, file_regime_text, regime_text
from xshare.report.first_screen import first_screen
from xshare.report.html import EMPTY, Html, join, tag
from xshare.report.labels import BARS, column_title
from xshare.report.result_files import ResultFile
from xshare.report.tables import file_table
from xshare.results import Row
from xshare.version import __version__

# Nothing may be loaded or run, whatever is in a file: the browser sees to it.
SEALED = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
TITLES = {"git": "commit", "argv": "command", "time": "measured"}
STEPS = 8  # of making a page, for whoever wants to know how far it is


def page(files: list[ResultFile], notes: list[str], title: str, advance: Advance = quiet) -> str:
    sections = []
    top = first_screen(files)
    advance(1)
    for name, heading, make in (
        ("pareto", "Speed against quality", _pareto),
        ("layers", "Active experts by layer", _layers),
        ("law", "What an expert costs", _law),
        ("stairs", "What sets of each size cost", _stairs),
        ("curve", "Active experts against batch size", _curve),
        ("tables", "All results, and how they were measured", _tables),
    ):
        sections.append((name, heading, make(files)))
        advance(1)
    sections.append(("notes", "Notes", tag("ul", *(tag("li", note) for note in notes)) if notes else EMPTY))
    body = [
        tag("section", tag("details", tag("summary", tag("h2", heading)), content), id=name, aria_label=heading)
        for name, heading, content in sections
        if content
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
    main = tag("main", tag("h1", title), _header(files), top, *body)
    whole = "<!doctype html>\n" + tag("html", head, tag("body", main, made), lang="en") + "\n"
    advance(1)
    return whole


def _header(files: list[ResultFile]) -> Html:
    stamps = [stamp for file in files for stamp in (file.provenance, *file.later)]
    dates = sorted(str(stamp["time"])[:10] for stamp in stamps if stamp.get("time"))
    models = dict.fromkeys(str(m) for f in files if (m := f.provenance.get("model") or f.provenance.get("shape")))
    gpus = dict.fromkeys(str(gpu) for f in files if (gpu := f.provenance.get("gpu")))
    facts = [f"{len(files)} result file{'s' if len(files) != 1 else ''}"]
    if dates:
        facts.append("measured " + (dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"))
    facts += [", ".join(found) for found in (models, gpus) if found]
    return tag("p", " · ".join(facts), class_="lead")


def _tables(files: list[ResultFile]) -> Html:
    return join(*map(_file, files))


def _file(file: ResultFile) -> Html:
    """What was measured, when and under which conditions; how, and all rows, when opened."""
    when = str(file.provenance.get("time", ""))[:10]
    facts = [file.kind or "columns of no known kind", file_regime_text(file)]
    said = tag("span", ", ".join(fact for fact in facts if fact), " ", tag("time", when))
    summary = tag("summary", tag("h3", file.name), " ", said)
    later = [join(tag("p", "Gone on with by a later run:"), _facts(stamp)) for stamp in file.later]
    return tag("details", summary, file_table(file), _facts(file.provenance), *later)


def _facts(stamp: Row) -> Html:
    named = {TITLES.get(name, column_title(name)): _fact(value) for name, value in stamp.items() if value is not None}
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", fact)) for name, fact in named.items()))


def _fact(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def _pareto(files: list[ResultFile]) -> Html:
    figures: list[Html] = []
    for plane in pareto.planes(files):
        best = ", ".join(point.policy for point in plane.front())
        label = f"{plane.words()}, {len(plane.points)} policies; front: {best}"
        figures.append(pareto.chart(plane).figure(label, f"{plane.source}. On the front: {best}."))
    return _grid(
        figures,
        f"Up and right is better. {BARS} Where a point has none, its file has none. No policy beats one on the front "
        "in both. A name that would cover another is left out: point at a marker, or see the tables.",
    )


def _layers(files: list[ResultFile]) -> Html:
    figures: list[Html] = []
    for file in files:
        for regime, rows in by_regime(file, file.rows):
            if found := layers.by_layer(rows):
                left = len(found) - layers.MOST
                found = dict(list(found.items())[: layers.MOST])
                label = f"Active experts in each layer: {', '.join(found)}"
                caption = _caption(file, regime_text(regime)) + (f" {left} more in the tables." if left > 0 else "")
                figures.append(layers.chart(found).figure(label, caption))
    return _grid(figures, "What a step loads in each layer, beside what native routing would load.")


def _law(files: list[ResultFile]) -> Html:
    figures: list[Html] = []
    for file in files:
        found = list(law.laws(file))
        for conditions in dict.fromkeys(steps.but_batch for steps in found):
            alike = sorted((s for s in found if s.but_batch == conditions), key=lambda s: (len(s.batch), s.batch))
            said = "; ".join(steps.spelled() for steps in alike)
            label = f"Time of a step against active experts: {said}"
            figures.append(law.chart(alike).figure(label, f"{_caption(file, conditions)} {said}."))
    return _grid(figures, "Time of a decode step against the experts it loads, and the line step = a + b·T.")


def _stairs(files: list[ResultFile]) -> Html:
    figures: list[Html] = []
    for file in files:
        for regime, found in staircase.staircases(file):
            said = "; ".join(stairs.spelled() for stairs in found)
            label = f"Time of a step against the size of its set: {said}"
            figures.append(staircase.chart(found).figure(label, f"{_caption(file, regime_text(regime))} {said}."))
    return _grid(
        figures,
        "Time of a decode step with a set of so many experts, for each number of rows. "
        f"{BARS} A number beside a point is the end of a stair: one expert more costs more than experts do on average.",
    )


def _curve(files: list[ResultFile]) -> Html:
    figures: list[Html] = []
    for file in files:
        for regime, found in curve.curves(file):
            label = f"Active experts against batch size: {', '.join(found)}"
            figures.append(curve.chart(found).figure(label, _caption(file, regime_text(regime))))
    return _grid(figures, "The dashed line is what independent, uniform choices would load.")


def _caption(file: ResultFile, conditions: str) -> str:
    return f"{file.name}: {conditions}." if conditions else f"{file.name}."


def _grid(figures: list[Html], words: str) -> Html:
    return join(tag("p", words), tag("div", *figures, class_="figures")) if figures else EMPTY
