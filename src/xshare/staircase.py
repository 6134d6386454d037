"""The staircase: what a set of each size costs on one machine, in a file that `xshare doctor --stairs` writes.

A step's time does not grow evenly with its experts: some experts are free, and one too many costs a whole stair. The
file holds times by rows per step and size of the set. They give one cost table per number of rows
(docs/algorithms/beyond.md, section 5b).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xshare.algorithms.price import SLACK
from xshare.errors import XShareError, short_repr
from xshare.files import quoted_path, read_whole
from xshare.policy import MOST

# The conditions a staircase was measured under: it is valid for one machine, one engine, one kernel and one model.
# `cpu` is the processor's name, where the device is one; `expert_bytes` those of one expert in all layers, which tell
# quantised weights from others; `host_layers` the number of layers whose experts a GPU reads from host memory.
WHERE = (
    *("engine", "version", "device", "cpu", "backend", "dtype", "experts", "top_k", "layers", "config"),
    *("tensor_parallel", "expert_parallel", "expert_bytes", "host_layers"),
)
COLUMNS = ("batch", "experts", "ms", "ms_low", "ms_high", "backend", "layers")  # `batch` counts the rows of a step

# A measurement is settled after so many rounds, when no standard error exceeds this share of an expert's cost.
LEAST, NOISE = 4, 0.25

# Larger than any real staircase: a bad file must not fill the memory.
MOST_BYTES, MOST_EXPERTS, MOST_TABLES = 16 << 20, 8192, 1024


class StairsError(XShareError):
    """A staircase that cannot be read, or was measured under other conditions."""


@dataclass(frozen=True)
class Stairs:
    where: dict[str, Any]  # the known ones of WHERE
    times: dict[int, dict[int, float]]  # by rows per step: size of the set -> measured ms
    name: str = "the staircase"
    sha256: str | None = None  # of its file
    unsettled: tuple[int, ...] = ()  # rows per step whose times scatter too much, as far as the file tells

    @cached_property
    def rows(self) -> list[int]:
        return sorted(self.times)

    @cached_property
    def costs(self) -> Tensor:
        """float64 [len(rows), N + 1]: one cost table per number of rows, in the order of `rows`."""
        N = int(self.where["experts"])
        return torch.stack([cost_of(list(self.times[rows]), list(self.times[rows].values()), N) for rows in self.rows])

    def table_for(self, rows: int) -> int | None:
        """The index of the cost table for a step: that of the smallest measured step with at least as many rows. None
        for a step larger than any measured one."""
        return next((number for number, measured in enumerate(self.rows) if measured >= rows), None)

    def notes(self) -> list[str]:
        """What whoever uses this staircase must know."""
        if not self.unsettled:
            return []
        return [
            f"{self.name} is not settled for steps of {_listed(self.unsettled)} rows, whose times scatter by more than "
            f"{NOISE:.0%} of what an expert costs: give xshare doctor --stairs more --rounds"
        ]

    def check_batch(self, requests: int, drafts: int = 0) -> None:
        """Refuse a batch whose steps have more rows than any that was measured: no cost would count in them."""
        rows = requests * (1 + drafts)
        if rows > self.rows[-1]:
            raise StairsError(
                f"{self.name} has steps of up to {self.rows[-1]} rows, and a batch of {requests} here has steps of "
                f"{rows}: measure those too, with xshare doctor --stairs and --rows {rows}, or take a smaller batch"
            )

    def check_conditions(self, running: Mapping[str, Any]) -> None:
        """Refuse a staircase that was measured under other conditions. `running`: what is known of the running engine,
        by the names of WHERE."""
        for name in WHERE:
            measured, actual = self.where.get(name), running.get(name)
            if measured is not None and actual is not None and measured != actual:
                raise StairsError(
                    f"{self.name} was measured with {name.replace('_', ' ')} {measured!r}, and here it is {actual!r}: "
                    f"measure it here, with xshare doctor --stairs"
                )


def read_stairs(path: Path) -> Stairs:
    name = f"staircase {quoted_path(path)}"
    content = read_whole(path, "staircase", MOST_BYTES, StairsError)
    try:
        result = json.loads(content)
        stamp, times = result["provenance"], dict[int, dict[int, float]]()
        for row in result["rows"]:
            times.setdefault(int(row["batch"]), {})[int(row["experts"])] = float(row["ms"])
        conditions = {condition: stamp.get(condition) for condition in WHERE}
        unsettled = _unsettled(result["rows"])
        stairs = Stairs(conditions, times, name, hashlib.sha256(content).hexdigest(), unsettled)
        experts = int(stamp["experts"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise StairsError(f"{name} must be a file that xshare doctor --stairs has written") from None
    if not 1 <= experts <= MOST_EXPERTS:
        raise StairsError(f"{name} is of a model with 1 to {MOST_EXPERTS} experts, not {short_repr(experts)}")
    if len(times) > MOST_TABLES or not all(1 <= rows <= MOST for rows in times):
        raise StairsError(f"{name} has steps of 1 to {MOST} rows, of {MOST_TABLES} numbers at most")
    if not all(isfinite(ms) for by_size in times.values() for ms in by_size.values()):
        raise StairsError(f"{name} holds a time that is no number")
    if not times:
        raise StairsError(f"{name} holds no times: let xshare doctor --stairs finish")
    stairs.costs  # noqa: B018 (raises if the times make no cost table)
    return stairs


def _unsettled(rows: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """The numbers of rows per step whose times are not settled. A file from before it said so is judged by its
    intervals."""
    by_batch: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_batch.setdefault(int(row["batch"]), []).append(row)
    return tuple(batch for batch, own in sorted(by_batch.items()) if not _is_settled(own))


def _is_settled(rows: Sequence[Mapping[str, Any]]) -> bool:
    if all("settled" in row for row in rows):
        return all(row["settled"] is True for row in rows)
    if not all("ms_low" in row and "ms_high" in row for row in rows):
        return True  # nobody knows
    times = {int(row["experts"]): (float(row["ms"]), float(row["ms_low"]), float(row["ms_high"])) for row in rows}
    return settled(times, int(rows[0].get("rounds", LEAST)))


def _listed(numbers: Sequence[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}" if others else last


def settled(times: Mapping[int, tuple[float, float, float]], rounds: int) -> bool:
    """Whether these times tell what an expert costs. `times`: size of the set -> (ms, low, high)."""
    return rounds >= LEAST and len(times) > 1 and noise_ms(times) <= NOISE * expert_ms(times)


def expert_ms(times: Mapping[int, tuple[float, float, float]]) -> float:
    """What one more expert costs: the slope over all sizes."""
    ms = np.array([ms for ms, _, _ in times.values()])
    return float(np.polyfit(list(times), ms, 1)[0]) if np.isfinite(ms).all() else float("nan")


def noise_ms(times: Mapping[int, tuple[float, float, float]]) -> float:
    """The largest standard error of any size's time."""
    return max(high - low for _, low, high in times.values()) / (2 * 1.96)


def cost_of(sizes: Sequence[int], ms: Sequence[float], num_experts: int) -> Tensor:
    """Times of sets of these sizes -> the cost table c[0..N], float64. It never falls. Its least-squares slope is 1
    over the measured sizes; outside them it continues with slope 1."""
    order = np.argsort(sizes)
    at, level = np.asarray(sizes)[order], never_falling(np.asarray(ms, dtype=np.float64)[order])
    if len(at) < 2 or at[0] < 0 or at[-1] > num_experts or len(set(sizes)) < len(at):
        raise StairsError(f"a staircase needs times of two sizes or more, each once, from 0 to {num_experts} experts")
    slope = float(np.polyfit(at, level, 1)[0])
    if not slope > 1e-9 * level[0]:
        raise StairsError("a staircase needs times that grow with the experts, and these do not: is it another bound?")
    cost = np.interp(np.arange(num_experts + 1), at, (level - level[0]) / slope + at[0])
    below, above = np.arange(at[0]), np.arange(at[-1] + 1, num_experts + 1)
    cost[below], cost[above] = below, cost[at[-1]] + above - at[-1]
    return torch.from_numpy(cost)


def never_falling(values: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Isotonic regression: the nearest non-decreasing sequence by least squares. Falling neighbours get their mean."""
    means: list[float] = []
    counts: list[int] = []
    for value in values:
        means.append(float(value))
        counts.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            (first, a), (second, b) = (means.pop(-2), counts.pop(-2)), (means.pop(), counts.pop())
            means.append((first * a + second * b) / (a + b))
            counts.append(a + b)
    return np.repeat(means, counts)


def edges(cost: Tensor, first: int, last: int) -> list[int]:
    """The largest size on each stair from `first` to `last`: up to it, one more expert costs almost nothing."""
    stair_ends: list[int] = []
    size = first
    while size <= last:
        size = min(last, int((cost <= cost[size] + SLACK).sum()) - 1)
        stair_ends.append(size)
        size += 1
    return stair_ends


def clear_edges(cost: Tensor, times: Mapping[int, tuple[float, float, float]]) -> list[int]:
    """The edges that are not noise: one more expert costs more than the average expert, even if both times lie at the
    near ends of their intervals. `times`: size of the set -> (ms, low, high)."""
    average_step = expert_ms(times)
    return [
        edge
        for edge in edges(cost, min(times), max(times))
        if {edge, edge + 1} <= times.keys() and times[edge + 1][1] - times[edge][2] > average_step
    ]
