"""The rule of a vLLM router as a RouterSpec, or why it cannot be served."""

from __future__ import annotations

from typing import Any

import torch

from xshare.batch import Placement
from xshare.router import RouterSpec


def router_of(router: Any) -> RouterSpec | str:
    """The router's rule, or the reason to leave its layer alone."""
    kind = type(router).__name__
    if getattr(router, "_hash_indices_table", None) is not None:
        return "its experts come from a table of token ids (hash routing)"
    if kind == "ZeroExpertRouter":
        return "it has zero experts"
    if getattr(router, "num_fused_shared_experts", 0):
        return "shared experts are fused into its routing"
    if getattr(router, "bias_vl", None) is not None:
        return "image tokens have a correction bias of their own"
    if getattr(router, "custom_routing_function", None) is not None or kind == "CustomRoutingRouter":
        return "it routes by a function of the model's own"
    grouped = kind == "GroupedTopKRouter" or (kind == "CPURouter" and router.use_grouped_topk)
    if kind not in ("FusedTopKRouter", "FusedTopKBiasRouter", "GroupedTopKRouter", "CPURouter"):
        return f"its router {kind} is not known"
    if router.scoring_func not in ("softmax", "sigmoid"):
        return f"its scores are {router.scoring_func}, not softmax or sigmoid"
    bias = getattr(router, "e_score_correction_bias", None)
    n_group, topk_group = (router.num_expert_group or 1, router.topk_group or 1) if grouped else (1, 1)
    if n_group > 1 and bias is None:
        return "it judges groups by their best expert alone, not by their best two"
    if bias is not None and router.scoring_func != "sigmoid":
        return "it has a correction bias on softmax scores"
    return RouterSpec(
        top_k=router.top_k,
        scoring=router.scoring_func,
        renormalize=bool(router.renormalize),
        correction_bias=None if bias is None else bias.detach(),
        n_group=n_group,
        topk_group=topk_group if n_group > 1 else 1,
        routed_scaling_factor=float(getattr(router, "routed_scaling_factor", 1.0)),
    )


def placement_of(runner: Any, num_experts: int, device: torch.device) -> Placement | None:
    """Which rank holds each expert, by vLLM's own rule; None without expert parallelism.

    With replicas (EPLB) an expert counts for the rank of its first replica. vLLM moves replicas: see
    Layer.follow_replicas.
    """
    from vllm.model_executor.layers.fused_moe.expert_map_manager import determine_expert_map

    manager = runner.routed_experts.expert_map_manager
    if manager.ep_size == 1:
        return None
    if has_replicas(runner):
        return Placement(first_replicas(runner).to(device), manager.ep_size)
    devices = torch.full((num_experts,), -1, dtype=torch.int64)
    for rank in range(manager.ep_size):
        _, local, _ = determine_expert_map(manager.ep_size, rank, num_experts, manager.placement_strategy)
        devices[local.cpu()[:num_experts] >= 0] = rank
    return Placement(devices, manager.ep_size).to(device)


def has_replicas(runner: Any) -> bool:
    state = getattr(runner.router, "eplb_state", None)
    return getattr(state, "logical_to_physical_map", None) is not None


def replica_map(runner: Any) -> torch.Tensor:
    """The physical positions of each expert's replicas, [N, most replicas]. vLLM updates it when it moves them."""
    positions: torch.Tensor = runner.router.eplb_state.logical_to_physical_map
    return positions


def first_replicas(runner: Any) -> torch.Tensor:
    """The rank of each expert's first replica, int64 [N], without leaving the device."""
    manager = runner.routed_experts.expert_map_manager
    physical = replica_map(runner)[:, 0]  # [N]
    per_rank = runner.router.global_num_experts // manager.ep_size
    ranks: torch.Tensor = (physical // per_rank).clamp(min=0).long()
    return ranks
