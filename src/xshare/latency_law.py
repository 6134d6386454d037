"""The latency law: a decode step costs a base and so much for every expert it loads, `step = a + b * T`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xshare.errors import XShareError

WORTH = 1.03  # a smaller gain is not worth a risk to the answers


@dataclass(frozen=True)
class Law:
    a: float  # ms
    b: float  # ms for an expert more in every layer
    r2: float  # share of the variance that the line explains

    def step(self, active: float) -> float:
        return self.a + self.b * active

    def gain(self, before: float, after: float) -> float:
        """How many times as fast a step is that loads `after` experts instead of `before`."""
        return self.step(before) / self.step(after)

    def share(self, active: float) -> float:
        """The part of a step that loading its experts takes."""
        return self.b * active / self.step(active)

    def __str__(self) -> str:
        return f"step = {self.a:.3g} {'-' if self.b < 0 else '+'} {abs(self.b):.3g} * T ms, R² {self.r2:.3f}"


def fit_law(active: Sequence[float], step_ms: Sequence[float]) -> Law:
    """Least squares, through three sizes or more."""
    if len(set(active)) < 3:
        raise XShareError(f"a law needs steps of three sizes or more, not {len(set(active))}: widen the sweep")
    x, y = np.array(active), np.array(step_ms)
    b, a = np.polyfit(x, y, 1)
    spread, left = float(((y - y.mean()) ** 2).sum()), float(((y - a - b * x) ** 2).sum())
    return Law(float(a), float(b), 1 - left / spread if spread else 1.0)
