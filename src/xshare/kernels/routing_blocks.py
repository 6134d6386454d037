"""Rows in blocks of one expert each: a step's routing as vLLM's modular experts read it, in device memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

from xshare.kernels.plan import Plan
from xshare.kernels.routing_tables import DTYPES, FORM_BLOCKS, FORM_IDS, no_tables

NUM_EXPERTS = (16, 32, 64, 128, 256, 512)  # for which sums are taken in the engine's order
BLOCK_SIZES = (16, 32, 64, 128)
MOST_TOP_K = 16


class Blocks:
    """Tables for steps of up to `rows` rows. Layers run one after another, and may share them.

    ids      int32 [rows * k]: each row's experts, best first
    weights  float32 [rows * k]
    pairs    int32: at each position of a block its pair, row * k + slot; where there is none, the number of pairs
    tiles    int32: each block's expert
    end      int32 [1]: positions of all blocks
    """

    def __init__(
        self,
        plan: Plan,
        num_experts: int,
        top_k: int,
        dtype: torch.dtype,
        device: torch.device | str,
        block_size: Callable[[int], int] = lambda rows: BLOCK_SIZES[0],
        unsorted: int = 0,
    ) -> None:
        """`block_size`: rows of a step -> rows of a block. `unsorted`: up to so many rows the engine reads ids alone,
        and no blocks are made."""

        def memory(*shape: int, kind: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=kind, device=device)

        if num_experts not in NUM_EXPERTS or top_k > MOST_TOP_K or dtype not in DTYPES:
            raise ValueError(
                f"routing into blocks serves {NUM_EXPERTS} experts, a top-k of at most {MOST_TOP_K} and 16-bit logits, "
                f"not {num_experts}, {top_k}, {dtype}"
            )
        self.rows, self.num_experts, self.top_k, self.dtype = plan.rows, num_experts, top_k, dtype
        self.block_size, self.sorts = block_size, plan.rows > unsorted
        self.checked = False  # against the engine's own routing
        self.exact = plan.on_gpu
        most = plan.rows * top_k
        self.ids, self.weights = memory(most), memory(most, kind=torch.float32)
        self.pairs = memory(most + num_experts * (BLOCK_SIZES[-1] - 1))
        self.tiles, self.end = memory(most + num_experts), memory(1)
        # Between rows and columns, and between the programs of a launch.
        self.keys, self.row_sums = memory(most), memory(plan.blocks * plan.block_r, kind=torch.float32)
        self.marks = memory(plan.blocks * plan.block_q * plan.block_n)
        self.places = memory(2 * plan.blocks * plan.block_n)
        self.hists = memory(plan.blocks * plan.block_n)

    def arguments(self, present: int) -> dict[str, Any]:
        """The kernels' arguments for a step of `present` rows."""
        return no_tables(self.ids) | {
            "ids": self.ids, "weights": self.weights, "pairs": self.pairs, "tiles": self.tiles, "offsets": self.end,
            "shift": self.block_size(present).bit_length() - 1,
            "keys": self.keys, "row_sums": self.row_sums, "marks": self.marks, "places": self.places,
            "SLOTS": triton.next_power_of_2(self.top_k), "EXACT": self.exact,
            "ROUTE": FORM_BLOCKS if self.sorts else FORM_IDS,
        }  # fmt: skip
