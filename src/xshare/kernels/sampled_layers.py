"""The figures of a sampled step, counted for all layers in one launch from the logits that they saved."""

from __future__ import annotations

from dataclasses import dataclass

import triton
from torch import Tensor

from xshare.kernels import step_counts as counting
from xshare.kernels.launch import SCORINGS
from xshare.router import RouterSpec


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """L layers with the same router rules, and what their last step saved."""

    seen: Tensor  # float32 [L, R, N]: the logits before masking
    keep: Tensor  # bool [L, N]: S
    router: RouterSpec
    bias: Tensor  # float32 [L, N], zeros for a router without a bias
    devices: Tensor  # int32 [L, N]
    num_devices: int = 1

    def count(self, rows: int, sums: Tensor) -> None:
        """Add a step of `rows` voting rows to `sums`, float64 [7, L]: native, selected and active experts; share of the
        native weight kept; share of rows that keep less than half of it; the smallest share that a row keeps; max
        load."""
        layers, _, N = self.seen.shape
        counting.count_step[(layers,)](
            seen=self.seen, layer_stride=self.seen.stride(0), rows=rows, keep_ptr=self.keep, bias_ptr=self.bias,
            devices_ptr=self.devices, num_devices=self.num_devices, sums=sums, layers=layers,
            N=N, BN=max(16, triton.next_power_of_2(N)), K=self.router.top_k, SCORING=SCORINGS[self.router.scoring],
            RENORMALIZE=self.router.renormalize, GROUPS=self.router.n_group, KEEP_GROUPS=self.router.topk_group,
            num_warps=1,
        )  # fmt: skip
