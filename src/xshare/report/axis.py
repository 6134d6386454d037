"""An axis of a plot: maps values to positions, and chooses round tick values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

TICKS = 6  # roughly


@dataclass(frozen=True)
class Axis:
    label: str
    unit: float = 1  # of tick labels: 0.01 shows a share in percent
    suffix: str = ""
    sign: bool = False  # tick labels show a plus sign
    zero: bool = False  # starts at 0
    doubling: bool = False  # logarithmic, base 2; values must be above 0

    def scale(self, values: Sequence[float], start: float, end: float) -> Scale:
        """A scale that fits these values between two positions."""
        positions = [self._even(value) for value in values]
        low, high = min(positions, default=0.0), max(positions, default=1.0)
        low = min(low, 0.0) if self.zero else low
        # Between the outermost value and the frame.
        spare = 0.08 * (high - low) or max(0.5 * self.unit, abs(high) / 100)
        return Scale(self, low - (0.0 if self.zero else spare), high + spare, start, end)

    def _even(self, value: float) -> float:
        return math.log2(value) if self.doubling else value

    def tick_text(self, value: float, decimals: int) -> str:
        value = round(value / self.unit, decimals) + 0  # + 0: not -0
        return f"{value:{'+' if self.sign and value else ''}.{decimals}f}{self.suffix}"


@dataclass(frozen=True)
class Scale:
    axis: Axis
    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = (self.axis._even(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Positions and labels of the ticks."""
        if self.axis.doubling:
            powers = range(math.ceil(self.low), math.floor(self.high) + 1)
            return [(self.at(2.0**power), f"{2.0**power:g}") for power in powers]
        unit = self.axis.unit
        step = _round_step((self.high - self.low) / unit / TICKS)
        decimals = max(0, -math.floor(math.log10(step) + 1e-9), 1 if step == 2.5 else 0)
        first, last = math.ceil(self.low / unit / step - 1e-9), math.floor(self.high / unit / step + 1e-9)
        values = [count * step * unit for count in range(first, last + 1)]
        return [(self.at(value), self.axis.tick_text(value, decimals)) for value in values]


def _round_step(step: float) -> float:
    """1, 2 or 5 times a power of ten, at least `step`."""
    power: float = 10.0 ** math.floor(math.log10(step))
    return next(times * power for times in (1, 2, 5, 10) if times * power >= step * 0.999)
