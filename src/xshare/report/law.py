"""The latency law: a step's time against the experts it loads, `step = a + b * T`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from xshare.law import fit
from xshare.report.inline import MARKERS, plain
from xshare.report.plot import new_axes
from xshare.report.read import ResultFile, number
from xshare.report.regime import by_regime, spelled

WITHOUT = ("plain", "unused", "native")  # methods of rows without selection: its cost is not in their time


@dataclass(frozen=True)
class Law:
    """Measured steps of one regime, and the line through them; no line through fewer than three sizes."""

    regime: str
    but_batch: str  # the same without the batch: such are drawn together
    active: list[float]
    step_ms: list[float]

    @property
    def line(self) -> tuple[float, float, float] | None:
        """a, b and the share of the variance that the line explains."""
        if len(set(self.active)) < 3:
            return None
        law = fit(self.active, self.step_ms)
        return law.a, law.b, law.r2

    def spelled(self) -> str:
        if self.line is None:
            return f"{self.regime}: too few sizes for a line"
        a, b, r2 = self.line
        sign = "-" if b < 0 else "+"
        return f"{self.regime}: step = {a:.3g} {sign} {abs(b):.3g} T ms, R² {r2:.3f}"


def laws(file: ResultFile) -> Iterator[Law]:
    for regime, rows in by_regime(file, [r for r in file.rows if r.get("method", r.get("policy")) not in WITHOUT]):
        found = [(number(row.get("active")), number(row.get("step_ms"))) for row in rows if row.get("layer") is None]
        pairs = [(active, ms) for active, ms in found if active is not None and ms is not None]
        if len(pairs) > 1:
            but_batch = {name: value for name, value in regime.items() if name != "batch"}
            names = (spelled(regime) or "all rows", spelled(but_batch))
            yield Law(*names, [x for x, _ in pairs], [y for _, y in pairs])


def draw_laws(found: list[Law]) -> tuple[Any, Any]:
    figure, axes = new_axes("", "active experts a layer, T", "step, ms")
    for place, law in enumerate(found):
        dots = axes.plot(law.active, law.step_ms, MARKERS[place % len(MARKERS)], label=plain(law.regime))
        if law.line is not None:
            ends = [min(law.active), max(law.active)]
            axes.plot(ends, [law.line[0] + law.line[1] * x for x in ends], "-", color=dots[0].get_color(), lw=1)
    axes.set_ylim(bottom=0)
    return figure, axes
