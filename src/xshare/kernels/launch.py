"""Buffers and launches of the fused selection: what an engine holds for each layer, and for all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from xshare.batch import Placement
from xshare.errors import LayoutError, PolicyError
from xshare.kernels import selection as kernel
from xshare.policy import Policy

MAX_EXPERTS, MAX_WARMUP = 512, 4
ONE_LAUNCH_ROWS, TWO_LAUNCH_ROWS, BLOCK_ROWS = 64, 256, 32
SCORINGS = {"softmax": 0, "sigmoid": 1, "given": 2}
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Control:
    """What changes from step to step, in device memory: a captured graph reads it afresh at every replay."""

    def __init__(self, device: torch.device | str, max_requests: int = TWO_LAUNCH_ROWS) -> None:
        self.words = torch.zeros(7, dtype=torch.int32, device=device)  # gate, rows, requests, k0, m, m_r, m_g
        self.tau = torch.full((1,), -1.0, dtype=torch.float64, device=device)  # below zero: no threshold
        # query_start_loc, with room for the blocks of two launches to look past the last request
        self.starts = torch.zeros(2 * max_requests + 2, dtype=torch.int32, device=device)
        self.max_requests = max_requests

    def set_policy(self, policy: Policy) -> None:
        """Another policy from the next step on. Budgets beyond any N are cut, which changes nothing."""
        if reason := unsupported_policy(policy):
            raise PolicyError(reason)
        m_g = -1 if policy.device_budget is None else min(policy.device_budget, MAX_EXPERTS)
        budgets = [min(budget, MAX_EXPERTS) for budget in (policy.batch_budget, policy.request_budget)]
        self.words[3:].copy_(torch.tensor([policy.warmup, *budgets, m_g], dtype=torch.int32))
        self.tau.fill_(-1.0 if policy.mass is None else policy.mass)

    def set_step(self, rows: int, starts: Sequence[int] | None = None) -> None:
        """The first `rows` rows vote; `starts` are their requests' boundaries, or every row is a request of its own."""
        starts = range(rows + 1) if starts is None else starts
        if len(starts) - 1 > self.max_requests:
            raise LayoutError(f"starts must name at most {self.max_requests} requests, not {len(starts) - 1}")
        self.words[1:3].copy_(torch.tensor([rows, len(starts) - 1], dtype=torch.int32))
        self.starts[: len(starts)].copy_(torch.tensor(list(starts), dtype=torch.int32))

    def set_gate(self, on: bool) -> None:
        self.words[0] = int(on)


@dataclass
class FusedSelection:
    """One layer's selection: its fixed shapes and rules, its outputs, and the launch.

    `rows` is the number of rows of the logits, voting ones first and padding after, at most 256. `rows_per_request` is
    the most rows one request can have, 0 where no policy will ever set m_r. Nothing is allocated after construction.
    """

    num_experts: int
    top_k: int  # S is topped up to this; 0 leaves it as the algorithm defines it
    rows: int
    device: torch.device | str
    scoring: str = "softmax"  # or sigmoid, or given: the rows are scores already
    correction_bias: Tensor | None = None  # [N], sigmoid only
    n_group: int = 1
    topk_group: int = 1
    rows_per_request: int = 0
    placement: Placement | None = None  # expert parallelism
    fill: str = "level"
    mask_logits: bool = True  # in place, so that the engine's own router refines
    with_mass: bool = True

    def __post_init__(self) -> None:
        if reason := unsupported_shape(self.num_experts, self.rows, self.rows_per_request, self.n_group):
            raise LayoutError(reason)
        N, device = self.num_experts, self.device
        self.keep = torch.ones(N, dtype=torch.bool, device=device)  # S
        self.mass = torch.ones(self.rows, dtype=torch.float32, device=device)  # share of each row's score inside S
        bias = torch.zeros(N) if self.correction_bias is None else self.correction_bias
        self.bias = bias.to(device, torch.float32).contiguous()
        self.masked_bias = self.bias.clone()  # for routers that rank by score + bias: the lowest value outside S
        devices = torch.zeros(N) if self.placement is None else self.placement.devices
        self.devices = devices.to(device, torch.int32).contiguous()
        self.num_devices = 1 if self.placement is None else self.placement.num_devices

        self.two_launches = self.rows > ONE_LAUNCH_ROWS
        self.block_n = max(16, triton.next_power_of_2(N))
        self.block_r = BLOCK_ROWS if self.two_launches else triton.next_power_of_2(self.rows)
        # A block's requests: all there can be in one launch, as many as surely fit into its rows in two.
        each = self.rows_per_request
        self.quota = 0 if not each else self.block_r // each if self.two_launches else self.rows
        self.num_blocks = triton.cdiv(self.rows, self.quota or self.block_r) if self.two_launches else 1
        self.sums = torch.zeros(self.num_blocks, self.block_n, dtype=torch.float64, device=device)
        self.counts = torch.zeros(self.num_blocks, self.block_n, dtype=torch.int32, device=device)
        # Measured on an H200: sums over rows cross warps, so few are better, until registers spill.
        self.warps = 4 if self.block_r * self.block_n <= 4096 and self.block_n <= 256 else 8
        self.early = torch.device(device).type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)

    def launch(self, logits: Tensor, control: Control) -> None:
        """Select for `logits` [rows, N], rows possibly strided; leaves keep, mass, masked_bias and masked logits."""
        tile: dict[str, Any] = {
            "N": self.num_experts, "BR": self.block_r, "BN": self.block_n, "SCORING": SCORINGS[self.scoring],
            "num_warps": self.warps,
        }  # fmt: skip
        voting: dict[str, Any] = {
            "GROUPS": self.n_group, "KEEP_GROUPS": self.topk_group,
            "BQ": triton.next_power_of_2(self.quota + 1) if self.quota else 0,
        }  # fmt: skip
        choosing: dict[str, Any] = {
            "TOP_K": self.top_k, "DEVICES": self.placement is not None, "ROUNDS": self.fill == "rounds",
            "MASK_LOGITS": self.mask_logits, "MASK_BIAS": self.scoring == "sigmoid", "MASS": self.with_mass,
            "LOWEST": torch.finfo(logits.dtype).min,
        }  # fmt: skip
        rows = (logits, logits.stride(0), logits.shape[0], self.bias)
        rules = (control.words, control.tau, self.devices, self.num_devices)
        outputs = (self.keep, self.masked_bias, self.mass)
        if not self.two_launches:
            early = {"EARLY": self.early} | ({"launch_pdl": True} if self.early else {})
            kernel.select_in_one_launch[(1,)](
                *rows, control.starts, *rules, *outputs,
                VEC=max(1, self.block_n // 32), **early, **tile, **voting, **choosing,
            )  # fmt: skip
            return
        blocks = (self.sums, self.counts)
        kernel.vote_in_blocks[(self.num_blocks,)](
            *rows, control.starts, control.words, *blocks, QUOTA=self.quota, **tile, **voting
        )
        kernel.choose_and_mask[(triton.cdiv(logits.shape[0], self.block_r),)](
            *rows, *rules, *outputs, *blocks, BLOCKS=self.num_blocks, **tile, **choosing
        )


def unsupported_shape(num_experts: int, rows: int, rows_per_request: int = 0, n_group: int = 1) -> str | None:
    """Why the kernels cannot serve this shape, or None."""
    if not 1 <= num_experts <= MAX_EXPERTS:
        return f"the fused selection serves 1 to {MAX_EXPERTS} experts, not {num_experts}"
    if not 1 <= rows <= TWO_LAUNCH_ROWS:
        return f"the fused selection serves 1 to {TWO_LAUNCH_ROWS} rows, not {rows}"
    if rows > ONE_LAUNCH_ROWS and rows_per_request > BLOCK_ROWS:
        return f"beyond {ONE_LAUNCH_ROWS} rows a request can have at most {BLOCK_ROWS} rows, not {rows_per_request}"
    if n_group > 1 and (num_experts < 16 or num_experts & (num_experts - 1) or n_group & (n_group - 1)):
        return f"the fused selection serves groups in powers of two, not {n_group} groups of {num_experts} experts"
    return None


def unsupported_policy(policy: Policy) -> str | None:
    """Why the kernels cannot serve this policy, or None."""
    if policy.method != "xshare" or policy.score != "full":
        return f"the fused selection runs method 'xshare' with score 'full', not {policy}"
    if policy.warmup > MAX_WARMUP:
        return f"warmup (k0) must be at most {MAX_WARMUP} in the fused selection, not {policy.warmup}"
    return None
