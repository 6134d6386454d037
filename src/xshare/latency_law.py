"""The latency law: a decode step costs a base plus a fixed time per loaded expert, `step = a + b * T`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xshare.errors import XShareError

WORTH = 1.03  # a smaller gain is not worth a risk to the answers


@dataclass(frozen=True)
class Law:
    a: float  # ms
    b: float  # ms for one more expert in every layer
    r2: float  # share of the variance that the law explains

    def step(self, active: float) -> float:
        return self.a + self.b * active

    def gain(self, before: float, after: float) -> float:
        """The speedup of a step that loads `after` experts instead of `before`."""
        return self.step(before) / self.step(after)

    def share(self, active: float) -> float:
        """The share of a step's time that loading its experts takes."""
        return self.b * active / self.step(active)

    def __str__(self) -> str:
        return f"step = {self.a:.3g} {'-' if self.b < 0 else '+'} {abs(self.b):.3g} * T ms, R² {self.r2:.3f}"


def fit_law(active: Sequence[float], step_ms: Sequence[float]) -> Law:
    """The least-squares line through steps of three sizes or more."""
    if len(set(active)) < 3:
        raise XShareError(f"a law needs steps of three sizes or more, not {len(set(active))}: widen the sweep")
    x, y = np.array(active), np.array(step_ms)
    b, a = np.polyfit(x, y, 1)
    variance, residual = float(((y - y.mean()) ** 2).sum()), float(((y - a - b * x) ** 2).sum())
    return Law(float(a), float(b), 1 - residual / variance if variance else 1.0)
