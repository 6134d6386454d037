"""Speed against quality, one point per policy, and the front: the policies that no other beats in both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xshare.report.axis import Axis
from xshare.report.chart import Chart, Series
from xshare.report.conditions import Regime, by_regime, regime_text
from xshare.report.labels import Value, policy_label, printable, value
from xshare.report.point_labels import Spot
from xshare.report.result_files import ResultFile
from xshare.results import Row
from xshare.results.columns import number

SAVED = "saved"  # not a column: the share of native's experts that are not loaded
SPEED = ("ratio", "tokens_per_s", "otps")
QUALITY = ("accuracy", "agreement", "mass")
ANSWERS = ("accuracy", "agreement")  # measured on the answers; gating mass is only a hint
AXES = {
    "ratio": Axis("speed, times native's"),
    "tokens_per_s": Axis("tokens per second"),
    "otps": Axis("output tokens per second"),
    "accuracy": Axis("accuracy", 0.01, " %"),
    "agreement": Axis("tokens as native's", 0.01, " %"),
    "mass": Axis("routing weight kept", 0.01, " %"),
    SAVED: Axis("share of native's experts saved", 0.01, " %"),
    "gain": Axis("speed gained over native", 0.01, " %", sign=True),
    "points": Axis("accuracy against native, points", sign=True),
}


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
        """The points that no other beats, slowest first. Equal points do not beat each other."""

        def beaten(p: Judged) -> bool:
            return any(
                q.speed[0] >= p.speed[0]
                and q.quality[0] >= p.quality[0]
                and (q.speed[0], q.quality[0]) != (p.speed[0], p.quality[0])
                for q in self.points
            )

        return sorted((p for p in self.points if not beaten(p)), key=lambda p: p.speed[0])

    def words(self) -> str:
        return f"{AXES[self.quality].label} against {AXES[self.speed].label}"

    def title(self, p: Judged) -> str:
        """A point in words."""
        x, y = AXES[self.speed], AXES[self.quality]
        speed, quality = x.tick_text(p.speed[0], 1), y.tick_text(p.quality[0], 1)
        return f"{policy_label(p.policy)}: {x.label} {speed}, {y.label} {quality}"


def planes(files: list[ResultFile]) -> Iterator[Plane]:
    """A plane for each file and regime with both speed and quality, and one with experts saved in place of speed.

    A file with speed only is joined with the answers of another file, if both name the same model and batch and agree
    in every condition that both state.
    """
    groups = [(file, regime, rows) for file in files for regime, rows in by_regime(file, policy_rows(file))]
    for file, regime, rows in groups:
        measured, quality = _column(rows, SPEED), _column(rows, QUALITY)
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
    where = regime_text(regime)
    return f"{names}: {where}" if where else names


def policy_rows(file: ResultFile) -> list[Row]:
    """Rows about a policy over all layers, without the points of a curve."""
    rows = [r for r in file.rows if "policy" in r and r.get("layer") is None and "closed_form" not in r]
    return [r for r in rows if not r.get("protected")]  # protection makes no new policy


def _agree(a: Regime, b: Regime) -> bool:
    required = {"model", "batch"}  # both must state these; other conditions count if both state them
    return required <= a.keys() & b.keys() and all(a[name] == b[name] for name in a.keys() & b.keys())


def _column(rows: list[Row], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if sum(_value(row, name) is not None for row in rows) > 1), None)


def _points(rows: list[Row], speed: str, judged: list[Row], quality: str) -> Iterator[Judged]:
    by_policy = {str(row["policy"]): row for row in judged}
    for row in rows:
        policy = str(row["policy"])
        judgement = row if judged is rows else by_policy.get(policy, {})
        x, y = _value(row, speed), _value(judgement, quality)
        if x is not None and y is not None:
            yield Judged(policy, method_of(row), x, y)


def method_of(row: Row) -> str:
    policy = str(row["policy"])
    method = policy.split(":")[0] if ":" in policy or policy == "native" else "xshare"
    return str(row.get("method", method))


def _value(row: Row, name: str) -> Value | None:
    return experts_saved(row) if name == SAVED else value(row, name)


def experts_saved(row: Row) -> Value | None:
    active, native = value(row, "active"), number(row.get("active_native"))
    if active is None or not native:
        return None
    middle, low, high = (
        number(1 - count / native) for count in active
    )  # None if infinite, when next to nothing was loaded
    return None if middle is None or low is None or high is None else (middle, high, low)


def chart(plane: Plane, best: Judged | None = None, rule: float | None = None) -> Chart:
    """One point per policy, names on the front placed first; a ring around `best`, a line at the height of `rule`."""
    front = plane.front()
    series = [Series("no other is better in both", [p.speed for p in front], [p.quality for p in front], line=True)]
    for look, method in enumerate(dict.fromkeys(p.method for p in plane.points)):
        points = [p for p in plane.points if p.method == method]
        titles = [plane.title(p) for p in points]
        series.append(
            Series(printable(method, 200), [p.speed for p in points], [p.quality for p in points], look, titles=titles)
        )
    names: dict[Spot, dict[str, None]] = {}  # policies at the same spot share one name
    for p in [*([] if best is None else [best]), *front, *plane.points]:
        names.setdefault((p.speed[0], p.quality[0]), {})[printable(policy_label(p.policy))] = None
    labels = {at: " = ".join([*policies][:3]) + (" …" if len(policies) > 3 else "") for at, policies in names.items()}
    ring = None if best is None else (best.speed[0], best.quality[0])
    return Chart(AXES[plane.speed], AXES[plane.quality], series, labels, rule, ring)
