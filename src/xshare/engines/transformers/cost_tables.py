"""Steps of one pass that take different cost tables: each table's by themselves, and all of them together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from xshare.batch import BatchLayout
from xshare.kernels.cpu import Routed
from xshare.routing import Routing

Found = TypeVar("Found", Routed, Routing)


@dataclass(frozen=True)
class Share:
    """The steps of a pass that take one table."""

    table: int | None
    layout: BatchLayout  # theirs, [steps, n]
    steps: Tensor | None = None  # their numbers, on the host; None for all


def shares(tables: Sequence[int | None], layout: BatchLayout) -> list[Share]:
    """From the table of each step and the layout of all, [steps, n]."""
    if len(set(tables)) == 1:
        return [Share(tables[0], layout)]
    found = []
    for table in dict.fromkeys(tables):
        steps = torch.tensor([step for step, its in enumerate(tables) if its == table])
        protected = None if layout.protected is None else layout.protected[steps]
        found.append(Share(table, BatchLayout(layout.requests[steps], protected), steps))
    return found


def by_table(found: Sequence[Share], rows: Tensor, call: Callable[[int | None, Tensor, BatchLayout], Found]) -> Found:
    """What `call` makes of rows [steps, n, N] with the table of each step."""
    parts, order = [], []
    for share in found:
        if share.steps is None:
            return call(share.table, rows, share.layout)
        parts.append(call(share.table, rows[share.steps], share.layout))
        order.append(share.steps)
    return together(parts, torch.cat(order).argsort())


def together(parts: list[Found], places: Tensor) -> Found:
    """Results of some steps each, [steps, ...], in the order that `places` says. Figures have steps last."""
    kind = type(parts[0])
    found: dict[str, Any] = {}
    for name in (each.name for each in fields(kind)):
        values = [getattr(part, name) for part in parts]
        if kind is Routing:
            found[name] = torch.cat(values)[places]
        else:
            axis = 1 if name == "figures" else 0
            found[name] = np.concatenate(values, axis).take(places.numpy(), axis)
    return kind(**found)
