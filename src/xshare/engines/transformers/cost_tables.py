"""Steps of one pass with different cost tables: routed per table, and put back in order."""

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

Result = TypeVar("Result", Routed, Routing)


@dataclass(frozen=True)
class Share:
    """The steps of a pass that use one cost table."""

    table: int | None
    layout: BatchLayout  # of these steps, [steps, n]
    steps: Tensor | None = None  # numbers of these steps, on the host; None for all


def split_by_table(tables: Sequence[int | None], layout: BatchLayout) -> list[Share]:
    """The shares of a pass, from the table of each step and the layout [steps, n]."""
    if len(set(tables)) == 1:
        return [Share(tables[0], layout)]
    shares = []
    for table in dict.fromkeys(tables):
        steps = torch.tensor([step for step, its in enumerate(tables) if its == table])
        protected = None if layout.protected is None else layout.protected[steps]
        shares.append(Share(table, BatchLayout(layout.requests[steps], protected), steps))
    return shares


def route_by_table(
    shares: Sequence[Share], rows: Tensor, call: Callable[[int | None, Tensor, BatchLayout], Result]
) -> Result:
    """The result of `call` for rows [steps, n, N], each step with its table."""
    parts, order = [], []
    for share in shares:
        if share.steps is None:
            return call(share.table, rows, share.layout)
        parts.append(call(share.table, rows[share.steps], share.layout))
        order.append(share.steps)
    return join_steps(parts, torch.cat(order).argsort())


def join_steps(parts: list[Result], order: Tensor) -> Result:
    """The parts' steps [steps, ...] as one result, reordered by `order`. In figures, steps are the last axis."""
    kind = type(parts[0])
    joined: dict[str, Any] = {}
    for name in (field.name for field in fields(kind)):
        values = [getattr(part, name) for part in parts]
        if kind is Routing:
            joined[name] = torch.cat(values)[order]
        else:
            axis = 1 if name == "figures" else 0
            joined[name] = np.concatenate(values, axis).take(order.numpy(), axis)
    return kind(**joined)
