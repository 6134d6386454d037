"""What a step is: the one thing that the model runner tells, and that every layer reads."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from xshare.batch import BatchLayout
from xshare.kernels.control import Control

Array = npt.NDArray[np.int32]


@dataclass
class Step:
    device: torch.device
    control: Control | None = None  # the same in device memory, on a GPU
    gate: bool = False  # whether selection acts on it
    sampling: bool = False  # whether its logits are left behind, to be counted
    rows: int = 0
    starts: Array = field(default_factory=lambda: np.zeros(1, np.int32))  # boundaries of its requests, query_start_loc
    costs: Tensor | None = None  # float64 [tables, N + 1]: what so many experts cost, Stairs.costs
    protected: Array | None = None  # its rows that keep their native experts, by number; None: there are none
    table: int | None = None  # which of them counts for it; None: none

    only_votes: bool = False  # its rows vote, and are left alone: all of them are protected

    laid_out: dict[int, BatchLayout] = field(default_factory=dict)  # by rows: of this step, for all its layers

    @property
    def cost(self) -> Tensor | None:
        """What 0 to N experts cost in it, float64 [N + 1]; None where that does not count."""
        return None if self.costs is None or self.table is None else self.costs[self.table]

    def layout(self, n: int) -> BatchLayout:
        """Requests of n rows, those after the voting ones -1."""
        if n not in self.laid_out:
            self.laid_out[n] = self._layout(n)
        return self.laid_out[n]

    def _layout(self, n: int) -> BatchLayout:
        requests = np.full(n, -1, np.int64)
        requests[: self.rows] = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        protected = None if self.protected is None else torch.from_numpy(self.protected).to(self.device)
        return BatchLayout(torch.from_numpy(requests).to(self.device), protected)
