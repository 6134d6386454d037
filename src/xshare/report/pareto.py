"""Speed against quality, a point a policy, and the front: the policies that nothing beats in both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from xshare.report.inline import GREY, MARKERS, SERIES, SIZE, legend, plain
from xshare.report.names import put_names
from xshare.report.plot import new_axes
from xshare.report.read import ResultFile
from xshare.report.regime import Regime, by_regime, spelled
from xshare.results import Row
from xshare.results.columns import ends, number

SAVED = "saved"  # not a column: the share of native's experts that is not loaded
SPEED = {"ratio": "speed, times the baseline", "tokens_per_s": "tokens a second", "otps": "output tokens a second"}
QUALITY = {"accuracy": "accuracy", "agreement": "agreement with native decoding", "mass": "gating mass kept"}
ANSWERS = ("accuracy", "agreement")  # what became of the answers; gating mass only hints at it
LABELS = SPEED | QUALITY | {SAVED: "share of native's experts saved"}
Value = tuple[float, float, float]  # with the ends of its interval, which may be no wider


@dataclass(frozen=True)
class Judged:
    """One policy: how fast, and how good its answers."""

    policy: str
    method: str
    speed: Value
    quality: Value


@dataclass(frozen=True)
class Plane:
    """One plot: points that were measured under the same conditions."""

    source: str
    speed: str
    quality: str
    points: list[Judged]

    def front(self) -> list[Judged]:
        """From the slowest to the fastest. Of equal points none beats the other, and all are on it."""

        def beaten(p: Judged) -> bool:
            return any(
                q.speed[0] >= p.speed[0]
                and q.quality[0] >= p.quality[0]
                and (q.speed[0], q.quality[0]) != (p.speed[0], p.quality[0])
                for q in self.points
            )

        return sorted((p for p in self.points if not beaten(p)), key=lambda p: p.speed[0])


def planes(files: list[ResultFile]) -> Iterator[Plane]:
    """A plane for each file and regime that has both; where speed was measured, one of the experts saved as well.

    A file of speeds alone meets the answers of another, if both name the same model and agree in every condition.
    """
    groups = [(file, regime, rows) for file in files for regime, rows in by_regime(file, _whole(file))]
    for file, regime, rows in groups:
        measured, quality = _column(rows, tuple(SPEED)), _column(rows, tuple(QUALITY))
        if quality in ANSWERS or measured is None:
            meets = []
        else:
            meets = [(f, r, g) for f, r, g in groups if _agree(regime, r) and _column(g, ANSWERS) is not None]
        for other, conditions, judged in meets:
            source = _source(f"{file.name} and {other.name}", regime | conditions)
            yield from _plane(source, rows, measured, judged, _column(judged, ANSWERS))
        for speed in (measured, _column(rows, (SAVED,))):
            yield from _plane(_source(file.name, regime), rows, speed, rows, quality)


def _plane(source: str, rows: list[Row], speed: str | None, judged: list[Row], quality: str | None) -> Iterator[Plane]:
    if speed is not None and quality is not None:
        points = list(_points(rows, speed, judged, quality))
        if len(points) > 1:
            yield Plane(source, speed, quality, points)


def _source(names: str, regime: Regime) -> str:
    where = spelled(regime)
    return f"{names}: {where}" if where else names


def _whole(file: ResultFile) -> list[Row]:
    """Rows about policies in whole; not of one layer, nor a point of a curve."""
    return [r for r in file.rows if "policy" in r and r.get("layer") is None and "closed_form" not in r]


def _agree(a: Regime, b: Regime) -> bool:
    named = {"model", "batch"}  # these by both, the others where both do
    return named <= a.keys() & b.keys() and all(a[name] == b[name] for name in a.keys() & b.keys())


def _column(rows: list[Row], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if sum(_value(row, name) is not None for row in rows) > 1), None)


def _points(rows: list[Row], speed: str, judged: list[Row], quality: str) -> Iterator[Judged]:
    by_policy = {str(row["policy"]): row for row in judged}
    for row in rows:
        policy = str(row["policy"])
        judgement = row if judged is rows else by_policy.get(policy, {})
        x, y = _value(row, speed), _value(judgement, quality)
        if x is not None and y is not None:
            yield Judged(policy, _method(row), x, y)


def _method(row: Row) -> str:
    policy = str(row["policy"])
    named = policy.split(":")[0] if ":" in policy or policy == "native" else "xshare"
    return str(row.get("method", named))


def _value(row: Row, name: str) -> Value | None:
    if name == SAVED:
        active, native = _value(row, "active"), number(row.get("active_native"))
        if active is None or not native:
            return None
        middle, low, high = active
        return 1 - middle / native, 1 - high / native, 1 - low / native
    value = number(row.get(name))
    if value is None:
        return None
    low, high = ends(row, name) or (value, value)
    return value, min(low, value), max(high, value)


def draw_plane(plane: Plane) -> tuple[Any, Any]:
    figure, axes = new_axes("", LABELS[plane.speed], LABELS[plane.quality])
    figure.set_size_inches(*SIZE)  # now: names are placed for this size
    front = [(p.speed[0], p.quality[0]) for p in plane.front()]
    axes.plot(*zip(*front, strict=True), "--", color=GREY, zorder=1, label="front")
    for place, method in enumerate(dict.fromkeys(p.method for p in plane.points)):
        mine = [p for p in plane.points if p.method == method]
        axes.errorbar(
            [p.speed[0] for p in mine],
            [p.quality[0] for p in mine],
            xerr=_bars([p.speed for p in mine]),
            yerr=_bars([p.quality for p in mine]),
            fmt=MARKERS[place % len(MARKERS)],
            color=SERIES[place % len(SERIES)],
            elinewidth=1,
            capsize=2,
            label=plain(method),
        )
    for axis, name in ((axes.xaxis, plane.speed), (axes.yaxis, plane.quality)):
        if name in (SAVED, "accuracy", "agreement"):
            axis.set_major_formatter(_percent)
    axes.margins(0.12)
    legend(figure)
    put_names(figure, axes, _names(plane.points), [front, *_lines(plane.points)])
    return figure, axes


def _percent(share: float, _: int) -> str:
    return f"{round(100 * share, 2) + 0:g}%"  # + 0: not -0


def _bars(values: list[Value]) -> list[list[float]]:
    """Lengths of the bars, down and up, as matplotlib wants them."""
    return [[middle - low for middle, low, _ in values], [high - middle for middle, _, high in values]]


def _names(points: list[Judged]) -> dict[tuple[float, float], str]:
    """Policies at the same spot share one name."""
    called: dict[tuple[float, float], list[str]] = {}
    for p in points:
        called.setdefault((p.speed[0], p.quality[0]), []).append(plain(p.policy))
    return {spot: " = ".join(names[:3]) + (" …" if len(names) > 3 else "") for spot, names in called.items()}


def _lines(points: list[Judged]) -> list[list[tuple[float, float]]]:
    across = [[(p.speed[1], p.quality[0]), (p.speed[2], p.quality[0])] for p in points]
    along = [[(p.speed[0], p.quality[1]), (p.speed[0], p.quality[2])] for p in points]
    return [line for line in across + along if line[0] != line[1]]
