"""A matplotlib figure as SVG inside a page, in the page's own colours, light or dark."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import Any

from xshare.report.html import Html, tag

SIZE = (5.2, 4.0)  # inches; small, so that text is still readable on a phone
# Colours are drawn as these and become the variables of page.css, which has a light and a dark value for each.
SERIES = ["#0b62c4", "#b45309", "#15803d", "#8b2fc9", "#c81e4a", "#0e7490", "#7c5a2a", "#4d5bbd"]
GREY = "#808080"
MARKERS = "osD^vP*X"  # beside colours: nothing is told by colour alone
VARIABLES = {"#000000": "currentColor", GREY: "var(--muted)", "#b0b0b0": "var(--muted)"} | {
    colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, 1)
}
Draw = Callable[[], tuple[Any, Any]]


def plot(draw: Draw, name: str, label: str, caption: str) -> Html:
    """What `draw` draws, as a figure of the page; `name` is unique in it, `label` says the plot in words."""
    picture = tag("div", Html(svg(draw, name)), class_="plot", role="img", aria_label=label)
    return tag("figure", picture, tag("figcaption", caption))


def svg(draw: Draw, name: str) -> str:
    from cycler import cycler
    from matplotlib import rc_context

    style: Any = {
        "svg.fonttype": "none",  # text stays text: the reader's font, selectable
        "svg.hashsalt": name,  # the same file for the same data
        "axes.prop_cycle": cycler(color=SERIES),
        "font.size": 11,
        "legend.frameon": False,
        "text.parse_math": False,  # names are names, also with a dollar in them
    }
    out = io.StringIO()
    with rc_context(style), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that matplotlib's font lacks: the reader's font draws it
        figure, _ = draw()
        figure.set_size_inches(*SIZE)
        if not figure.legends:
            legend(figure)
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    return _of_the_page(out.getvalue(), name)


def legend(figure: Any) -> None:
    names = [name for axes in figure.axes for name in axes.get_legend_handles_labels()[1]]
    columns = max(1, min(3, 50 // max(map(len, names), default=1)))  # a wider one would be cut off
    figure.legend(loc="outside upper left", ncols=columns, fontsize="small")  # outside: it covers nothing


def _of_the_page(text: str, name: str) -> str:
    """Without what is for a file of its own; ids that no other plot has; the page's colours."""
    text = text[text.index("<svg") :]
    text = re.sub(r'<style type="text/css">.*?</style>', "", text, flags=re.DOTALL)  # would hold for the whole page
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    return re.sub(r"#[0-9a-f]{6}\b", lambda found: VARIABLES.get(found[0], found[0]), text)


def plain(text: object) -> str:
    """A name from a file as it may stand in a picture: one line, not too long, no control characters."""
    cleaned = "".join(char if char.isprintable() else "�" for char in str(text))
    return cleaned if len(cleaned) <= 40 else cleaned[:39] + "…"
