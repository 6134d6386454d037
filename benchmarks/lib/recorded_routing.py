"""What a kernel that routes has left in a layer's last step, beside vLLM's own routing of the same masked logits."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor


class RecordedRouting:
    """Takes the place of a selector's `routed`. Layers share their tables, so each step's logits and tables are copied
    into buffers of this layer, inside captured graphs too."""

    def __init__(self, selector: Any, most_rows: int = 64) -> None:
        """`selector`: a FusedSelector that routes. Steps of more than `most_rows` rows are not recorded."""
        self.selector, self.native, self.path = selector, selector.routed, selector.one_launch
        self.most_rows = min(most_rows, max(selector.selections))
        # By rows of a selection. Made beforehand: a graph's own memory is used again by other graphs.
        self.tables = {rows: copy_of(selection.tables) for rows, selection in selector.selections.items()}
        device, experts = selector.own.device, selector.num_experts
        self.logits = torch.zeros(self.most_rows, experts, dtype=selector.routes, device=device)
        self.rows = torch.zeros((), dtype=torch.int64, device=device)  # of the last step, padding included
        selector.routed = self

    def __call__(self, logits: Tensor) -> Any:
        n = len(logits)
        recorded = n <= self.most_rows and logits.dtype == self.logits.dtype
        if recorded:
            self.logits[:n].copy_(logits)
        ready = self.native(logits)
        if recorded and ready is not None:
            self.rows.fill_(n)
            rows = self._rows_of_selection(n)
            left = tensors_of(self.selector.selections[rows].tables)
            for name, buffer in tensors_of(self.tables[rows]).items():
                buffer.copy_(left[name])
        return ready

    def _rows_of_selection(self, n: int) -> int:
        rows: int = next(rows for rows in self.selector.selections if rows >= n)
        return rows

    def as_vllm(self, keep: Tensor) -> tuple[bool, int]:
        """Whether ids, weights and tables of the last step are those of vLLM's own routing, to the bit, if it gets
        logits with all experts outside `keep` masked; and the rows of that step."""
        n = int(self.rows)
        tables = self.tables[self._rows_of_selection(n)]
        masked = torch.where(keep, self.logits[:n], torch.finfo(self.logits.dtype).min)
        ours, native = self.path.engine_tables(tables, n), self.path.route_natively(tables, masked)
        return bool(self.path.same_bits(ours, native)), n


def tensors_of(tables: Any) -> dict[str, Tensor]:
    return {name: value for name, value in vars(tables).items() if isinstance(value, Tensor)}


def copy_of(tables: Any) -> Any:
    """Tables with memory of their own."""
    copied = copy(tables)
    for name, tensor in tensors_of(tables).items():
        setattr(copied, name, torch.zeros_like(tensor))
    return copied
