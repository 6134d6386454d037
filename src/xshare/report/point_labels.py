"""Names beside the points of a plot, placed so that none covers another; a name without room is left out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Spot = tuple[float, float]
Boxes = NDArray[np.float64]  # [boxes, 4]: least x, least y, most x, most y
# Offsets of a name from its point, in typographic points, nearest first.
PLACES = [(7.0, 0.0), (-7.0, 0.0)] + [
    (dx * far, dy * far) for far in (6, 14, 24, 36) for dx, dy in ((1, 1), (-1, -1), (1, -1), (-1, 1))
]
CLOSE = 6  # a name this near needs no thread to its point
AROUND = 5  # radius of a marker
STEPS = np.linspace(0, 1, 12)[:, None]


@dataclass(frozen=True)
class Placed:
    """Where a name starts (or `ends`), at half its height, and where its thread starts, if it needs one."""

    at: Spot
    ends: bool
    thread: Spot | None


def place(spots: list[Spot], sizes: list[Spot], lines: list[list[Spot]], inside: Any) -> list[Placed | None]:
    """Places for names of `sizes` (width, height) at points `spots`, all in typographic points; the first choose first.

    `inside` is the box of the axes, which no name leaves. `lines` are covered only if no other place is free.
    """
    points, inside = np.array(spots, float).reshape(-1, 2), np.array(inside, float)
    taken = np.concatenate([points - AROUND, points + AROUND], axis=1)
    dots = np.concatenate([np.empty((0, 2)), *(_along(np.array(line)) for line in lines if len(line) > 1)])
    placed: list[Placed | None] = []
    for point, (width, height) in zip(points, sizes, strict=True):
        boxes = _boxes(point, width, height, inside)
        threads = [_along(np.array([np.clip(point, box[:2], box[2:]), point])) for box in boxes]
        fits = (boxes[:, :2] >= inside[:2]).all(1) & (boxes[:, 2:] <= inside[2:]).all(1)
        free = [n for n in np.flatnonzero(fits) if _free(boxes[n], threads[n], taken, len(points))]
        if not free:
            placed.append(None)
            continue
        best = min(free, key=lambda n: n + 2 * int(_covered(boxes[n], dots).sum()))  # near, and off the lines
        taken = np.concatenate([taken, boxes[best : best + 1]])
        far = abs(PLACES[best][1]) > CLOSE
        if far:
            dots = np.concatenate([dots, threads[best]])
        left, low, right, _ = boxes[best]
        ends = right <= point[0]  # so a name narrower than estimated still touches its point
        start = (float(threads[best][0][0]), float(threads[best][0][1])) if far else None
        placed.append(Placed((float(right if ends else left), float(low + height / 2)), bool(ends), start))
    return placed


def _boxes(point: Any, width: float, height: float, inside: Any) -> Boxes:
    """The box of a name in each of PLACES. A box that would stick out sideways is moved back over its point."""
    boxes = []
    for dx, dy in PLACES:
        left = point[0] + dx - (width if dx < 0 else 0)
        if abs(dy) > CLOSE:  # at the height of its point it would cover it
            left = max(inside[0] + 1, min(left, inside[2] - 1 - width))
        low = point[1] + dy - height / 2
        boxes.append([left, low, left + width, low + height])
    return np.array(boxes)


def _along(line: Any) -> Any:
    """Spots on a line: [spots, 2]."""
    return np.concatenate([start + STEPS * (end - start) for start, end in pairwise(line)])


def _free(box: Any, thread: Any, taken: Boxes, points: int) -> bool:
    """Whether a name covers nothing, and its thread no other name; names follow the points in `taken`."""
    if ((box[:2] < taken[:, 2:]).all(1) & (taken[:, :2] < box[2:]).all(1)).any():
        return False
    names = taken[points:, None]
    return not ((thread > names[..., :2]).all(2) & (thread < names[..., 2:]).all(2)).any()


def _covered(box: Any, dots: Any) -> NDArray[np.bool_]:
    covered: NDArray[np.bool_] = (dots > box[:2]).all(1) & (dots < box[2:]).all(1)
    return covered
