"""One MoE layer of SGLang: its routing rule, its experts, where they are, and the form in which they take routing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from xshare.batch import Placement
from xshare.engines.serving.hooks import MaskLogits, Reroute, rescales
from xshare.engines.sglang.routers import STANDARD
from xshare.kernels.limits import unsupported_shape
from xshare.policy import Policy
from xshare.router import RouterSpec

OTHER_BACKEND = "choose --moe-runner-backend triton"


@dataclass(eq=False)
class Site:
    number: int  # in the model
    name: str
    topk: Any  # SGLang's TopK
    experts: Any  # SGLang's FusedMoE
    router: RouterSpec
    num_experts: int
    placement: Placement | None
    format: str = STANDARD

    in_host_memory: bool = False
    rows_unshared: int = 0

    @property
    def top_k(self) -> int:
        return self.router.top_k

    @cached_property
    def expert_bytes(self) -> int | None:
        """Bytes of one expert on this rank: of all parameters that have a slice per expert."""
        local = int(getattr(self.experts, "num_local_experts", self.num_experts))
        weights = [weight for weight in self.experts.parameters() if weight.ndim and len(weight) == local]
        return sum(weight.nbytes for weight in weights) // local if weights else None

    @cached_property
    def backend(self) -> str:
        return type(getattr(self.experts, "quant_method", self.experts)).__name__

    def mode(self, policy: Policy) -> str:
        """How S reaches the layer: by masked logits, or by replacing its ids and weights."""
        plain = self.router.correction_bias is None and policy.method == "xshare"
        return MaskLogits.mode if plain else Reroute.mode

    def unservable(self, policy: Policy, device: torch.device) -> str | None:
        """Why this layer cannot be served, or None."""
        replaces = self.mode(policy) == Reroute.mode
        if self.format != STANDARD and (replaces or rescales(self)):
            what = "ids" if replaces else "weights"
            return f"its kernel routes by itself ({self.format}), where {what} cannot be replaced; {OTHER_BACKEND}"
        if replaces and getattr(self.topk.topk_config, "fused_gate_packed_ids", False):
            return f"its ids are packed, and cannot be replaced; {OTHER_BACKEND}"
        return unsupported_shape(self.num_experts, 1, self.router.n_group) if device.type == "cuda" else None
