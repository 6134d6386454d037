"""The staircase: step time against the size of the set, one line per number of rows, and where stairs end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from xshare.report.axis import Axis
from xshare.report.chart import Chart, Series
from xshare.report.conditions import Regime, by_regime
from xshare.report.labels import Value, printable, value
from xshare.report.point_labels import Spot
from xshare.report.result_files import STAIRS, ResultFile
from xshare.results import Row
from xshare.results.columns import count_of, number
from xshare.staircase import StairsError, clear_edges, cost_of
from xshare.statistics import interval_mark


@dataclass
class Stairs:
    """Step times for one number of rows."""

    rows: float
    rounds: int | None = None  # its times are medians over these
    times: dict[int, Value] = field(default_factory=dict)  # ms by size, smallest first

    def ends(self) -> list[int]:
        """The size at the end of each stair that stands out of the noise; empty if times do not grow."""
        try:
            cost = cost_of(list(self.times), [ms for ms, _, _ in self.times.values()], max(self.times))
        except StairsError:
            return []
        return clear_edges(cost, self.times)

    def ends_text(self) -> str:
        ends = self.ends()
        return f"{self.rows:g} rows: " + (f"stairs end at {', '.join(map(str, ends))}" if ends else "no clear stairs")


def staircases(file: ResultFile) -> Iterator[tuple[Regime, list[Stairs]]]:
    """The staircases of a file, by regime, fewest rows per step first."""
    if file.kind != STAIRS:
        return
    for regime, rows in by_regime(file, file.rows, but="batch"):
        by_rows: dict[float, Stairs] = {}
        for row in sorted(filter(_whole, rows), key=lambda row: (row["batch"], row["experts"])):
            ms = value(row, "ms")
            if ms is not None:
                stairs = by_rows.setdefault(row["batch"], Stairs(row["batch"], count_of(row, "ms")))
                stairs.times[int(row["experts"])] = ms
        if by_rows:
            yield regime, list(by_rows.values())


def _whole(row: Row) -> bool:
    rows, experts = number(row.get("batch")), number(row.get("experts"))
    return rows is not None and experts is not None and experts >= 0 and experts.is_integer()


def chart(staircases: list[Stairs]) -> Chart:
    """One line per staircase; the end of each stair is labelled with its size."""
    series: list[Series] = []
    names: dict[Spot, str] = {}
    for look, stairs in enumerate(staircases):
        sizes = [3 * (float(size),) for size in stairs.times]
        mark = interval_mark(stairs.rounds)
        titles = [
            f"{size} experts: {ms:.3f} ms ({low:.3f} to {high:.3f}{mark})"
            for size, (ms, low, high) in stairs.times.items()
        ]
        name = printable(f"{stairs.rows:g} rows")
        series.append(Series(name, sizes, list(stairs.times.values()), look, line=True, titles=titles))
        names |= {(float(edge), stairs.times[edge][0]): str(edge) for edge in stairs.ends()}
    return Chart(Axis("experts of the set, T"), Axis("step, ms"), series, names)
