"""The current step: the model runner writes it, and every layer reads it."""

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
    control: Control | None = None  # tells the kernels of the step, on a GPU
    gate: bool = False  # whether selection acts on it
    sampling: bool = False  # whether layers leave their logits behind, to be counted
    rows: int = 0
    starts: Array = field(
        default_factory=lambda: np.zeros(1, np.int32)
    )  # where each request's rows begin, as query_start_loc
    costs: Tensor | None = None  # float64 [tables, N + 1]: the cost of 0 to N experts, as Stairs.costs
    table: int | None = None  # which row of `costs` counts for this step; None: costs do not count
    protected: Array | None = None  # numbers of the rows that keep their native experts; None: there are none
    only_votes: bool = False  # all its rows are protected: they vote, and keep their native routing
    laid_out: dict[int, BatchLayout] = field(default_factory=dict)  # by rows with padding: shared by all layers

    @property
    def cost(self) -> Tensor | None:
        """What 0 to N experts cost in this step, float64 [N + 1]; None where costs do not count."""
        return None if self.costs is None or self.table is None else self.costs[self.table]

    def layout(self, n: int) -> BatchLayout:
        """The layout of n rows: padding after the step's own rows belongs to request -1."""
        if n not in self.laid_out:
            self.laid_out[n] = self._layout(n)
        return self.laid_out[n]

    def _layout(self, n: int) -> BatchLayout:
        requests = np.full(n, -1, np.int64)
        requests[: self.rows] = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        protected = None if self.protected is None else torch.from_numpy(self.protected).to(self.device)
        return BatchLayout(torch.from_numpy(requests).to(self.device), protected)
