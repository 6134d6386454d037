"""How a selection is divided into programs, by its shape and device; and the memory that the programs share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
import triton
from torch import Tensor

from xshare.kernels.control_words import MessageWord

LEAST_ROWS = 4  # of a tile: measured, one row that four warps share takes longer than four rows of a warp each
FEW_ROWS = 16
FEW_PAIRS = 64  # of row and expert


@dataclass(frozen=True)
class Plan:
    """The sizes of one launch. Equal plans can share scratch memory."""

    rows: int
    block_n: int  # number of experts, rounded up to a power of two
    each: int  # rows of a request that are read at once; 0: every row is a request
    warps: int
    block_q: int  # requests that a program reads at once
    one_tile: bool  # whether one program holds all rows in registers
    quota: int  # requests per program
    blocks: int  # programs
    block_r: int  # rows that a program writes
    on_gpu: bool
    early: bool  # programmatic dependent launch
    direct: bool  # whether rows are few enough for every program to sum all of them
    in_halves: bool = False  # two launches, with an all-reduce of the votes over all ranks in between

    @classmethod
    def of(
        cls,
        num_experts: int,
        rows: int,
        rows_per_request: int,
        device: torch.device | str,
        in_halves: bool = False,
        routed: int = 0,
    ) -> Self:
        """`routed`: experts per row that the launch also routes to; 0: it does not route."""
        block_n = max(16, triton.next_power_of_2(num_experts))
        # All rows of a request are read at once, as far as they fit the registers.
        fit = max(1, 512 // block_n)
        rows_at_once = min(fit, triton.next_power_of_2(rows_per_request)) if rows_per_request else 0
        # One expert per thread where experts are ranked, one row per warp where rows are read.
        warps = min(16, max(1, block_n // 32))
        block_q = max(LEAST_ROWS, min(warps, triton.next_power_of_2(rows)))
        # Measured: several programs are faster by a third at 24 rows, and at 16 rows that are routed to 8 experts each.
        few = min(FEW_ROWS, FEW_PAIRS // routed) if routed else FEW_ROWS
        one_tile = not rows_at_once and rows <= few and not in_halves
        # With few rows one program takes all requests, of which there may be one per row.
        quota = rows if one_tile or (rows_at_once and rows <= few) else block_q
        blocks = triton.cdiv(rows, quota)
        on_gpu = torch.device(device).type == "cuda"
        return cls(
            rows=rows,
            block_n=block_n,
            each=rows_at_once,
            warps=warps,
            block_q=block_q,
            one_tile=one_tile,
            quota=quota,
            blocks=blocks,
            block_r=max(LEAST_ROWS, triton.next_power_of_2(triton.cdiv(rows, blocks))),
            on_gpu=on_gpu,
            # AMD devices report capability 9 and above too, but their kernels cannot start early.
            early=on_gpu and not torch.version.hip and torch.cuda.get_device_capability(device) >= (9, 0),
            direct=blocks * block_q <= few and not in_halves,
            in_halves=in_halves,
        )

    @property
    def message_size(self) -> int:
        """The length of a rank's message, int64. It depends only on the number of experts: ranks may differ in rows."""
        return 2 * self.block_n + len(MessageWord)


class Scratch:
    """Memory between the programs of a launch. Layers run one after another, and may share it."""

    def __init__(self, plan: Plan, device: torch.device | str, message: Tensor | None = None) -> None:
        """`message`: memory shared with other plans for the same number of experts."""

        def zeros(count: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        self.plan = plan
        tile, columns = plan.blocks * plan.block_q * plan.block_n, plan.blocks * plan.block_n
        self.stats = zeros(2 * plan.rows, torch.float32)  # each row's best logit and total
        self.halves, self.counts = zeros(2 * tile, torch.float32), zeros(tile, torch.int32)
        self.sums, self.totals = zeros(columns, torch.int64), zeros(columns, torch.int32)
        self.order = zeros(columns, torch.int64)  # sums in greedy order, separately per program
        self.arrivals = zeros(1, torch.int64)  # never reset while an engine serves
        # summed over all ranks between the two launches
        self.message = zeros(plan.message_size, torch.int64) if message is None else message
