"""A plot as SVG inside the page, in the page's own light or dark colours. Its legend is HTML text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from xshare.report.axis import Axis, Scale
from xshare.report.html import EMPTY, Html, join, tag
from xshare.report.labels import Value
from xshare.report.point_labels import Spot, place

# In typographic points; small, so that text is still readable on a phone.
WIDTH, HEIGHT = 374.0, 264.0
LEFT, RIGHT, TOP, BOTTOM = 57.0, 18.0, 8.0, 38.0
NAME = 9.0  # size of a name beside a point
LETTER = 0.64  # width of a letter relative to the font size, for wide fonts
# Markers, because colour alone must not carry meaning: path in the plot, character in the legend.
MARKERS = (
    ("M-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0-7.2 0z", "●"),
    ("M-3.2-3.2h6.4v6.4h-6.4z", "■"),
    ("M0-4.4L4.4 0L0 4.4L-4.4 0z", "◆"),
    ("M0-4.2L4.2 3.4H-4.2z", "▲"),
    ("M0 4.2L4.2-3.4H-4.2z", "▼"),
    ("M-1.4-4.2h2.8v2.8h2.8v2.8h-2.8v2.8h-2.8v-2.8h-2.8v-2.8h2.8z", "✚"),
    ("M0-4.8L1.4-1.5L4.6-1.5L2-.6L2.9 3.9L0 1.3L-2.9 3.9L-2-.6L-4.6-1.5L-1.4-1.5z", "★"),
    ("M-4-2L-2-4L0-2L2-4L4-2L2 0L4 2L2 4L0 2L-2 4L-4 2L-2 0z", "✖"),
)
COLOURS = 8  # variables --series-1 to --series-8 of page.css


@dataclass(frozen=True)
class Series:
    """Points of one name in the legend, with markers, a line through them, or both."""

    name: str
    x: Sequence[Value]
    y: Sequence[Value]
    look: int | None = None  # which marker and colour; None is a grey line
    line: bool = False
    markers: bool = True
    titles: Sequence[str] = ()  # of the points, shown under the pointer

    @property
    def class_(self) -> str:
        return "grey" if self.look is None else f"series-{self.look % COLOURS + 1}"


@dataclass(frozen=True)
class Chart:
    x: Axis
    y: Axis
    series: Sequence[Series]
    names: dict[Spot, str] = field(default_factory=dict)  # beside points; the most important first
    rule: float | None = None  # height of a horizontal line
    ring: Spot | None = None  # around one point

    def figure(self, label: str, caption: str) -> Html:
        """The plot with its legend and a caption; `label` describes it in words."""
        keys = [tag("span", tag("b", _key(s), class_=s.class_), " ", s.name) for s in self.series if s.name]
        legend = tag("p", *keys, class_="legend") if len(keys) > 1 else EMPTY
        picture = tag("div", self.svg(), class_="plot", role="img", aria_label=label)
        return tag("figure", legend, picture, tag("figcaption", caption) if caption else EMPTY)

    def svg(self) -> Html:
        x = self.x.scale([at for s in self.series for value in s.x for at in value], LEFT, WIDTH - RIGHT)
        heights = [at for s in self.series for value in s.y for at in value]
        y = self.y.scale(heights + ([] if self.rule is None else [self.rule]), HEIGHT - BOTTOM, TOP)
        drawn = [self._axes(x, y), *(_line(s, x, y) for s in self.series if s.line)]
        drawn += [part for s in self.series if s.look is not None and s.markers for part in _points(s, x, y)]
        drawn += self._names(x, y)
        if self.ring is not None:
            drawn.append(tag("circle", cx=_n(x.at(self.ring[0])), cy=_n(y.at(self.ring[1])), r="7", class_="ring"))
        return tag("svg", *drawn, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", aria_hidden="true")

    def _axes(self, x: Scale, y: Scale) -> Html:
        left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
        across, along = y.ticks(), x.ticks()
        grid = "".join(f"M{left:g} {_n(at)}H{right:g}" for at, _ in across)
        grid += "".join(f"M{_n(at)} {top:g}V{bottom:g}" for at, _ in along)
        parts = [tag("path", d=grid, class_="grid")]
        parts.append(tag("path", d=f"M{left:g} {top:g}V{bottom:g}H{right:g}", class_="axis"))
        parts += [tag("text", text, x=_n(left - 5), y=_n(at + 3.5), class_="end") for at, text in across]
        parts += [tag("text", text, x=_n(at), y=_n(bottom + 13), class_="middle") for at, text in along]
        parts.append(tag("text", self.x.label, x=_n((left + right) / 2), y=_n(HEIGHT - 8), class_="middle"))
        turned = f"translate(10 {_n((top + bottom) / 2)}) rotate(-90)"
        parts.append(tag("text", self.y.label, transform=turned, class_="middle"))
        if self.rule is not None:
            parts.append(tag("path", d=f"M{left:g} {_n(y.at(self.rule))}H{right:g}", class_="rule"))
        return join(*parts)

    def _names(self, x: Scale, y: Scale) -> Iterator[Html]:
        spots = [(x.at(at[0]), y.at(at[1])) for at in self.names]
        sizes = [(LETTER * NAME * len(name), 1.2 * NAME) for name in self.names.values()]
        lines = [line for s in self.series for line in _lines(s, x, y)]
        inside = (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM)
        for name, spot, put in zip(self.names.values(), spots, place(spots, sizes, lines, inside), strict=True):
            if put is None:
                continue
            if put.thread is not None:
                yield tag("path", d=_path([put.thread, spot]), class_="thread")
            class_ = "name end" if put.ends else "name"
            yield tag("text", name, x=_n(put.at[0]), y=_n(put.at[1] + 0.35 * NAME), class_=class_)


def _key(series: Series) -> str:
    return "╌╌" if series.look is None else MARKERS[series.look % len(MARKERS)][1]


def _points(series: Series, x: Scale, y: Scale) -> Iterator[Html]:
    marker = MARKERS[(series.look or 0) % len(MARKERS)][0]
    bars = "".join(_path(line) for line in _lines(series, x, y, bars=True))
    if bars:
        yield tag("path", d=bars, class_=f"bars {series.class_}")
    for place_, (at, height) in enumerate(zip(series.x, series.y, strict=True)):
        title = tag("title", series.titles[place_]) if series.titles else EMPTY
        where = f"translate({_n(x.at(at[0]))} {_n(y.at(height[0]))})"
        yield tag("path", title, d=marker, transform=where, class_=f"point {series.class_}")


def _line(series: Series, x: Scale, y: Scale) -> Html:
    spots = [(x.at(at[0]), y.at(height[0])) for at, height in zip(series.x, series.y, strict=True)]
    return tag("path", d=_path(spots), class_=f"line {series.class_}")


def _lines(series: Series, x: Scale, y: Scale, bars: bool = False) -> list[list[Spot]]:
    """The intervals of a series, and the line through its points unless only `bars` are wanted."""
    lines = []
    for at, height in zip(series.x, series.y, strict=True):
        if at[1] != at[2]:
            lines.append([(x.at(end), y.at(height[0])) for end in at[1:]])
        if height[1] != height[2]:
            lines.append([(x.at(at[0]), y.at(end)) for end in height[1:]])
    if series.line and not bars:
        lines.append([(x.at(at[0]), y.at(height[0])) for at, height in zip(series.x, series.y, strict=True)])
    return lines


def _path(spots: Sequence[Spot]) -> str:
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in spots)


def _n(value: float) -> str:
    """A coordinate: a tenth of a point is precise enough."""
    return f"{value:.1f}"
