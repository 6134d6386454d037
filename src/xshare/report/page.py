"""The page: the answer first, the rest folded. A section appears only if there is data for it."""

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

# The browser enforces that nothing is loaded or run, whatever a result file contains.
SEALED = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
TITLES = {"git": "commit", "argv": "command", "time": "measured"}
STEPS = 8  # calls of `advance` per page


def page(files: list[ResultFile], notes: list[str], title: str, advance: Advance = quiet) -> str:
    sections = []
    top = first_screen(files)
    advance(1)
    for name, heading, section in (
        ("pareto", "Speed against quality", _pareto),
        ("layers", "Active experts by layer", _layers),
        ("law", "What an expert costs", _law),
        ("stairs", "What sets of each size cost", _stairs),
        ("curve", "Active experts against batch size", _curve),
        ("tables", "All results, and how they were measured", _tables),
    ):
        sections.append((name, heading, section(files)))
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
    footer = tag("footer", tag("p", f"Made by xshare {__version__}. Everything is in this file."))
    main = tag("main", tag("h1", title), _header(files), top, *body)
    html = "<!doctype html>\n" + tag("html", head, tag("body", main, footer), lang="en") + "\n"
    advance(1)
    return html


def _header(files: list[ResultFile]) -> Html:
    stamps = [stamp for file in files for stamp in (file.provenance, *file.later)]
    dates = sorted(str(stamp["time"])[:10] for stamp in stamps if stamp.get("time"))
    models = dict.fromkeys(str(m) for f in files if (m := f.provenance.get("model") or f.provenance.get("shape")))
    gpus = dict.fromkeys(str(gpu) for f in files if (gpu := f.provenance.get("gpu")))
    facts = [f"{len(files)} result file{'s' if len(files) != 1 else ''}"]
    if dates:
        facts.append("measured " + (dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"))
    facts += [", ".join(names) for names in (models, gpus) if names]
    return tag("p", " · ".join(facts), class_="lead")


def _tables(files: list[ResultFile]) -> Html:
    return join(*map(_file, files))


def _file(file: ResultFile) -> Html:
    """What was measured, when and under which conditions; unfolded, all rows and how they were measured."""
    when = str(file.provenance.get("time", ""))[:10]
    facts = [file.kind or "columns of no known kind", file_regime_text(file)]
    description = tag("span", ", ".join(fact for fact in facts if fact), " ", tag("time", when))
    summary = tag("summary", tag("h3", file.name), " ", description)
    later = [join(tag("p", "Continued by a later run:"), _facts(stamp)) for stamp in file.later]
    return tag("details", summary, file_table(file), _facts(file.provenance), *later)


def _facts(stamp: Row) -> Html:
    facts = {TITLES.get(name, column_title(name)): _fact(value) for name, value in stamp.items() if value is not None}
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", fact)) for name, fact in facts.items()))


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
            if by_policy := layers.by_layer(rows):
                left_out = len(by_policy) - layers.MOST
                by_policy = dict(list(by_policy.items())[: layers.MOST])
                label = f"Active experts in each layer: {', '.join(by_policy)}"
                caption = _caption(file, regime_text(regime)) + (
                    f" {left_out} more in the tables." if left_out > 0 else ""
                )
                figures.append(layers.chart(by_policy).figure(label, caption))
    return _grid(figures, "What a step loads in each layer, beside what native routing would load.")


def _law(files: list[ResultFile]) -> Html:
    figures: list[Html] = []
    for file in files:
        laws = list(law.laws(file))
        for conditions in dict.fromkeys(steps.but_batch for steps in laws):
            same_conditions = sorted(
                (s for s in laws if s.but_batch == conditions), key=lambda s: (len(s.batch), s.batch)
            )
            description = "; ".join(steps.law_text() for steps in same_conditions)
            label = f"Time of a step against active experts: {description}"
            figures.append(law.chart(same_conditions).figure(label, f"{_caption(file, conditions)} {description}."))
    return _grid(figures, "Time of a decode step against the experts it loads, and the line step = a + b·T.")


def _stairs(files: list[ResultFile]) -> Html:
    figures: list[Html] = []
    for file in files:
        for regime, staircases in staircase.staircases(file):
            description = "; ".join(stairs.ends_text() for stairs in staircases)
            label = f"Time of a step against the size of its set: {description}"
            figures.append(
                staircase.chart(staircases).figure(label, f"{_caption(file, regime_text(regime))} {description}.")
            )
    return _grid(
        figures,
        "Time of a decode step with a set of so many experts, for each number of rows. "
        f"{BARS} A number beside a point is the end of a stair: one expert more costs more than experts do on average.",
    )


def _curve(files: list[ResultFile]) -> Html:
    figures: list[Html] = []
    for file in files:
        for regime, curves in curve.curves(file):
            label = f"Active experts against batch size: {', '.join(curves)}"
            figures.append(curve.chart(curves).figure(label, _caption(file, regime_text(regime))))
    return _grid(figures, "The dashed line is what independent, uniform choices would load.")


def _caption(file: ResultFile, conditions: str) -> str:
    return f"{file.name}: {conditions}." if conditions else f"{file.name}."


def _grid(figures: list[Html], words: str) -> Html:
    return join(tag("p", words), tag("div", *figures, class_="figures")) if figures else EMPTY
