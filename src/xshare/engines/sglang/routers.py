"""The rule of an SGLang router as a RouterSpec, or why it cannot be served."""

from __future__ import annotations

from typing import Any

import torch

from xshare.batch import Placement
from xshare.router import RouterSpec

STANDARD = "STANDARD"  # TopKOutputFormat: ids and weights


def router_of(topk: Any) -> RouterSpec | str:
    """The rule of a TopK, or the reason to leave its layer alone."""
    config = topk.topk_config
    if getattr(topk, "enable_waterfill", False) or shared_slots(config):
        return "shared experts are fused into its routing"
    if config.custom_routing_function is not None or "forward" in vars(topk):
        return "it routes by a function of the model's own"
    bias = config.correction_bias
    grouped = bool(config.use_grouped_topk)
    # With groups and a bias SGLang uses a sigmoid, whatever scoring_func says.
    scoring: Any = "sigmoid" if grouped and bias is not None else config.scoring_func
    if scoring not in ("softmax", "sigmoid"):
        return f"its scores are {scoring}, not softmax or sigmoid"
    n_group, topk_group = (config.num_expert_group or 1, config.topk_group or 1) if grouped else (1, 1)
    if n_group > 1 and bias is None:
        return "it judges groups by their best expert alone, not by their best two"
    if bias is not None and scoring != "sigmoid":
        return "it has a correction bias on softmax scores"
    on_output = config.apply_routed_scaling_factor_on_output and config.routed_scaling_factor is not None
    return RouterSpec(
        top_k=config.top_k,
        scoring=scoring,
        renormalize=bool(config.renormalize),
        correction_bias=None if bias is None else bias.detach(),
        n_group=n_group,
        topk_group=topk_group if n_group > 1 else 1,
        routed_scaling_factor=float(config.routed_scaling_factor) if on_output else 1.0,
    )


def shared_slots(config: Any) -> int:
    """Shared experts among a row's experts; versions differ in the field's name."""
    return int(getattr(config, "num_shared_topk_slots", getattr(config, "num_fused_shared_experts", 0)))


def output_format(topk: Any, device: torch.device) -> str:
    """What a layer's routing hands to its experts: ids and weights (STANDARD), or logits for a kernel that also routes.
    In 0.5.16 that depends on the server's backend, which TopK looks up at every step."""
    configured = topk.topk_config.output_format
    if device.type == "cpu":
        return STANDARD
    if configured is not None:
        return str(configured.name)
    from sglang.srt.layers.moe import get_moe_runner_backend

    backend = get_moe_runner_backend()
    if backend.is_triton_kernels():
        return "TRITON_KERNEL"
    mxfp4 = backend.is_flashinfer_mxfp4() and not getattr(topk, "is_fp4_experts", False)
    experimental = getattr(backend, "is_experimental_sgl_trtllm", lambda: False)()
    return "BYPASSED" if mxfp4 or experimental or backend.is_flashinfer_trtllm() else STANDARD


def placement_of(experts: Any, num_experts: int, device: torch.device) -> Placement | None:
    """Which rank holds each expert, by SGLang's own rule: equal contiguous parts. None without expert parallelism."""
    ranks = int(getattr(experts, "moe_ep_size", 1))
    return None if ranks == 1 else Placement.contiguous(num_experts, ranks).to(device)
