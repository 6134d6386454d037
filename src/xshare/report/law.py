"""The latency law: a step's time against the experts it loads, `step = a + b * T`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from xshare.law import Law, fit
from xshare.report.inline import MARKERS, plain
from xshare.report.plot import new_axes
from xshare.report.read import ResultFile
from xshare.report.regime import by_regime, spelled
from xshare.results.columns import number

WITHOUT = ("plain", "unused", "native")  # methods of rows without selection: its cost is not in their time


@dataclass(frozen=True)
class Steps:
    """Measured steps of one regime, and the law they follow."""

    regime: str
    but_batch: str  # the same without the batch: such are drawn together
    active: list[float]
    step_ms: list[float]

    @cached_property
    def law(self) -> Law | None:
        """None through fewer than three sizes."""
        return fit(self.active, self.step_ms) if len(set(self.active)) >= 3 else None

    def spelled(self) -> str:
        said = "too few sizes for a line" if self.law is None else str(self.law).replace(" * T ", " T ")
        return f"{self.regime}: {said}"


def laws(file: ResultFile) -> Iterator[Steps]:
    for regime, rows in by_regime(file, [r for r in file.rows if r.get("method", r.get("policy")) not in WITHOUT]):
        found = [(number(row.get("active")), number(row.get("step_ms"))) for row in rows if row.get("layer") is None]
        pairs = [(active, ms) for active, ms in found if active is not None and ms is not None]
        if len(pairs) > 1:
            but_batch = {name: value for name, value in regime.items() if name != "batch"}
            names = (spelled(regime) or "all rows", spelled(but_batch))
            yield Steps(*names, [x for x, _ in pairs], [y for _, y in pairs])


def draw_laws(found: list[Steps]) -> tuple[Any, Any]:
    figure, axes = new_axes("", "active experts a layer, T", "step, ms")
    for place, steps in enumerate(found):
        dots = axes.plot(steps.active, steps.step_ms, MARKERS[place % len(MARKERS)], label=plain(steps.regime))
        if steps.law is not None:
            ends = [min(steps.active), max(steps.active)]
            axes.plot(ends, list(map(steps.law.step, ends)), "-", color=dots[0].get_color(), lw=1)
    axes.set_ylim(bottom=0)
    return figure, axes
