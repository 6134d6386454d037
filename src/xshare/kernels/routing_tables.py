"""Rows sorted by expert: a step's routing in the form that the experts' kernel reads, in device memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from xshare.kernels.expert_sorting import SIZES, SMALLEST
from xshare.kernels.plan import Plan

TOP_KS = (1, 2, 4, 8)  # for which sums are taken in the engine's order
DTYPES = (torch.bfloat16, torch.float16)  # of logits: a 32-bit integer holds a logit and its column
FORM_NONE, FORM_SORTED, FORM_IDS, FORM_BLOCKS = range(4)  # values of the kernels' ROUTE
LINE = 512  # table rows begin at multiples of it, as the engine's do: its kernels are compiled for that alignment


def most_tiles(pairs: int, num_experts: int) -> int:
    """The most tiles of 16 rows that `pairs` pairs of row and expert can need, for any distribution over experts."""
    return pairs if pairs <= num_experts else num_experts - 1 - (num_experts - pairs - 1) // SMALLEST


class Tables:
    """Tables for steps of up to `rows` rows. Pairs of row and expert are sorted by expert, then by row. Layers run one
    after another, and may share tables.

    hist     int32 [N]: rows per expert
    offsets  int32 [1 + SIZES, ...]: in line 0 where each expert's rows begin; in the other lines where its tiles begin,
             for tiles of 16, 32, 64 and 128 rows; the last entry of each line is the end
    tiles    int32 [SIZES, ...]: per tile its expert, and in the upper 16 bits its number within the expert; -1 after
             the last tile
    pairs    int32: the pair at each sorted position, then the sorted position of each pair
    weights  [rows * k], in sorted order
    """

    def __init__(
        self, plan: Plan, num_experts: int, top_k: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        def memory(*shape: int, kind: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=kind, device=device)

        def padded(length: int) -> int:
            return -(-length // LINE) * LINE

        if top_k not in TOP_KS or dtype not in DTYPES:
            raise ValueError(f"routing in one launch serves top-k of {TOP_KS} and 16-bit logits, not {top_k}, {dtype}")
        self.rows, self.num_experts, self.top_k, self.dtype = plan.rows, num_experts, top_k, dtype
        self.checked = False  # against the engine's own routing
        self.hist = memory(num_experts)
        self.offsets = memory(1 + SIZES, padded(num_experts + 1))
        self.tiles = memory(SIZES, padded(most_tiles(plan.rows * top_k, num_experts)))
        self.pairs = memory(2 * plan.rows * top_k)
        self.weights = memory(plan.rows * top_k, kind=dtype)
        # Between the programs of a launch, and between rows and columns.
        self.keys = memory(plan.blocks * plan.block_r * top_k)
        self.marks = memory(plan.blocks * plan.block_q * plan.block_n)
        self.places = memory(2 * plan.blocks * plan.block_n)
        self.hists = memory(plan.blocks * plan.block_n)

    def arguments(self, present: int) -> dict[str, Any]:
        """The kernels' arguments for a step of `present` rows."""
        return no_tables(self.pairs) | {
            "pairs": self.pairs, "weights": self.weights, "hist": self.hist, "offsets": self.offsets,
            "tiles": self.tiles, "most_tiles": most_tiles(present * self.top_k, self.num_experts),
            "keys": self.keys, "marks": self.marks, "places": self.places,
            "ROUTE": FORM_SORTED, "ROWS_MOST": self.rows,
            "OFFSETS": self.offsets.stride(0), "TILES": self.tiles.stride(0),
            "TILES_MOST": most_tiles(self.rows * self.top_k, self.num_experts),
        }  # fmt: skip


def no_tables(anything: Tensor) -> dict[str, Any]:
    """The kernels' arguments for a selection without routing. `anything`: a tensor that is never read."""
    names = ("pairs", "weights", "hist", "offsets", "tiles", "keys", "marks", "places", "ids", "row_sums")
    sizes = ("most_tiles", "shift", "ROWS_MOST", "OFFSETS", "TILES", "TILES_MOST", "SLOTS")
    return dict.fromkeys(names, anything) | dict.fromkeys(sizes, 0) | {"ROUTE": FORM_NONE, "EXACT": False}
