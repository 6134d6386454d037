"""The latency law: a step's time against the experts it loads, `step = a + b * T`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from xshare.latency_law import Law, fit_law
from xshare.report.axis import Axis
from xshare.report.chart import Chart, Series
from xshare.report.conditions import by_regime, regime_text
from xshare.report.labels import Value, printable
from xshare.report.result_files import ResultFile
from xshare.results.columns import number

WITHOUT = ("plain", "unused", "native")  # methods of rows without selection, whose time lacks its cost


@dataclass(frozen=True)
class Steps:
    """Measured steps of one regime, and the law they follow."""

    regime: str
    but_batch: str  # the regime without the batch: those with the same are drawn together
    batch: str
    active: list[float]
    step_ms: list[float]

    @cached_property
    def law(self) -> Law | None:
        """The fitted law; None with fewer than three sizes."""
        return fit_law(self.active, self.step_ms) if len(set(self.active)) >= 3 else None

    def law_text(self) -> str:
        law = "too few sizes for a line" if self.law is None else str(self.law).replace(" * T ", " T ")
        return f"{self.batch}: {law}"


def laws(file: ResultFile) -> Iterator[Steps]:
    for regime, rows in by_regime(file, [r for r in file.rows if r.get("method", r.get("policy")) not in WITHOUT]):
        measured = [(number(row.get("active")), number(row.get("step_ms"))) for row in rows if row.get("layer") is None]
        pairs = [(active, ms) for active, ms in measured if active is not None and ms is not None]
        if len(pairs) > 1:
            but_batch = {name: value for name, value in regime.items() if name != "batch"}
            batch = f"batch {regime['batch']}" if "batch" in regime else "all rows"
            names = (regime_text(regime) or "all rows", regime_text(but_batch), batch)
            yield Steps(*names, [x for x, _ in pairs], [y for _, y in pairs])


def chart(laws: list[Steps]) -> Chart:
    """One plot of steps that differ only in their batch, which the legend names."""
    series: list[Series] = []
    for look, steps in enumerate(laws):
        series.append(Series(printable(steps.batch, 200), _exact(steps.active), _exact(steps.step_ms), look))
        if steps.law is not None:
            ends = [min(steps.active), max(steps.active)]
            line = _exact(list(map(steps.law.step, ends)))
            series.append(Series("", _exact(ends), line, look, line=True, markers=False))
    return Chart(Axis("experts loaded per layer, T"), Axis("step, ms", zero=True), series)


def _exact(values: list[float]) -> list[Value]:
    return [(value, value, value) for value in values]
