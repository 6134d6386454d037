"""One MoE layer of vLLM: its routing rule, its experts, where they are, and the path it takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from xshare.batch import Placement
from xshare.engines.vllm.expert_bytes import backend, expert_bytes, in_host_memory, rows_unshared
from xshare.kernels.limits import unsupported_shape
from xshare.policy import Policy
from xshare.router import RouterSpec


@dataclass(eq=False)
class Site:
    number: int  # in the model
    name: str
    runner: Any  # vLLM's MoERunner
    router: RouterSpec
    num_experts: int
    placement: Placement | None

    @cached_property
    def monolithic(self) -> bool:
        """Whether the experts' kernel routes by itself."""
        return bool(self.runner.routed_experts.quant_method.is_monolithic)

    @property
    def top_k(self) -> int:
        return self.router.top_k

    @property
    def path(self) -> str:
        return "monolithic" if self.monolithic else "router"

    @cached_property
    def expert_bytes(self) -> int | None:
        return expert_bytes(self.runner)

    @cached_property
    def backend(self) -> str:
        return backend(self.runner)

    @cached_property
    def in_host_memory(self) -> bool:
        return in_host_memory(self.runner)

    @cached_property
    def rows_unshared(self) -> int:
        """0 with expert parallelism, where vLLM always sorts rows by expert."""
        return 0 if self.placement else rows_unshared(self.num_experts, self.router.top_k)

    def unservable(self, policy: Policy, device: torch.device) -> str | None:
        """Why this layer cannot be served on its path, or None."""
        if self.monolithic and self.router.n_group > 1:
            return "its kernel judges groups by experts outside the set too; choose a modular --moe-backend"
        if getattr(self.runner, "do_naive_dispatch_combine", False):
            return "its experts are handed the logits of all data-parallel ranks; choose another --moe-backend"
        # A rank that acts and one that is left alone would route the same rows by different biases.
        if self.monolithic and self.router.correction_bias is not None and self.runner.moe_config.dp_size > 1:
            return "its kernel routes the rows of all data-parallel ranks by one bias; choose a modular --moe-backend"
        if self.monolithic and policy.method != "xshare":
            return f"method {policy.method!r} cannot reach into its kernel; choose a modular --moe-backend"
        return unsupported_shape(self.num_experts, 1, self.router.n_group) if device.type == "cuda" else None
