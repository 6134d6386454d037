"""Routing in one launch, on vLLM's modular path with Triton experts (Qwen3-MoE, in 16 bits or FP8).

Natively that takes three launches after the selection's: top-k, and two that sort rows into blocks of one expert. Our
kernel leaves ids and weights, which the router returns, and the blocks. The experts call `moe_align_block_size` for
blocks: a stand-in under that name returns ours, if the call is for the same ids, block size and experts. Any other call
is vLLM's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from xshare.engines.vllm.one_launch import not_here
from xshare.engines.vllm.routers import has_replicas
from xshare.engines.vllm.routing_check import as_bits
from xshare.engines.vllm.site import Site
from xshare.kernels.plan import Plan
from xshare.kernels.routing_blocks import BLOCK_SIZES, MOST_TOP_K, NUM_EXPERTS, Blocks
from xshare.kernels.routing_tables import DTYPES

VERIFIED = ("0.26.",)  # versions of vLLM with which it was run on a GPU
EXPERTS, ROUTER = "TritonExperts", "FusedTopKRouter"
MODULE = "vllm.model_executor.layers.fused_moe.fused_moe"
PARAMETERS = ["topk_ids", "block_size", "num_experts", "expert_map", "pad_sorted_ids", "ignore_invalid_experts"]


@dataclass(frozen=True)
class Routing:
    """A step's routing, in the form that vLLM's functions return."""

    weights: Tensor  # float32 [n, k]
    ids: Tensor  # int32 [n, k]
    block_size: int
    num_experts: int
    blocks: tuple[Tensor, Tensor, Tensor] | None  # pairs, each block's expert, the number of positions; None: no blocks

    def serves(self, ids: Tensor, block_size: int, num_experts: int) -> bool:
        same_ids = self.blocks is not None and ids.data_ptr() == self.ids.data_ptr() and ids.shape == self.ids.shape
        return same_ids and (block_size, num_experts) == (self.block_size, self.num_experts)


class StandIn:
    """Replaces `moe_align_block_size` in the module whose experts call it."""

    def __init__(self, module: Any) -> None:
        self.native = module.moe_align_block_size
        self.ready: Routing | None = None  # of the layer that was routed last
        module.moe_align_block_size = self

    def __call__(self, topk_ids: Tensor, block_size: int, num_experts: int, *args: Any, **options: Any) -> Any:
        ready, self.ready = self.ready, None
        asks_for_more = any(value is not None and value is not False for value in (*args, *options.values()))
        if ready is None or asks_for_more or not ready.serves(topk_ids, block_size, num_experts):
            return self.native(topk_ids, block_size, num_experts, *args, **options)
        return ready.blocks


def stand_in() -> StandIn:
    """The stand-in, one per process."""
    module = import_module(MODULE)
    own = module.moe_align_block_size
    return own if isinstance(own, StandIn) else StandIn(module)


def why_not(site: Site, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why a layer is routed by vLLM itself, or None."""
    if (reason := not_here(device, VERIFIED)) is not None:
        return reason
    if site.monolithic or site.backend != EXPERTS:
        return f"the experts are computed by {site.backend}, not {EXPERTS}"
    rule, router = site.router, site.runner.router
    if type(router).__name__ != ROUTER or rule.scoring != "softmax" or not rule.renormalize or rule.top_k > MOST_TOP_K:
        return f"it serves renormalised softmax over a row's top {MOST_TOP_K} or fewer, not {rule}"
    if dtype not in DTYPES or site.num_experts not in NUM_EXPERTS:
        return f"it serves 16-bit logits of {NUM_EXPERTS} experts, not {site.num_experts} of {dtype}"
    if site.runner.routed_experts.expert_map is not None or has_replicas(site.runner):
        return "experts are spread over devices"
    if site.runner.routed_experts.quant_method.topk_indices_dtype not in (None, torch.int32):
        return "the experts ask for ids that are not 32-bit integers"
    if list(inspect.signature(stand_in().native).parameters) != PARAMETERS:
        return "vLLM's moe_align_block_size has other parameters"
    return None


def make_tables(plan: Plan, site: Site, dtype: torch.dtype, device: torch.device) -> Blocks:
    return Blocks(plan, site.num_experts, site.top_k, dtype, device, block_size_of(site, dtype), site.rows_unshared)


def block_size_of(site: Site, dtype: torch.dtype) -> Callable[[int], int]:
    """Rows of a step -> rows of a block, as vLLM's experts will choose them. If they choose otherwise, they are handed
    no blocks, and sort by themselves."""
    from vllm.model_executor.layers.fused_moe.fused_moe import try_get_optimal_moe_config

    held = site.runner.routed_experts
    experts = held.quant_method.moe_kernel.fused_experts

    @cache
    def block_size(rows: int) -> int:
        shapes = held.w13_weight.size(), held.w2_weight.size()
        name = experts.quant_config.config_name(dtype)
        config = try_get_optimal_moe_config(*shapes, site.top_k, name, rows, block_shape=experts.block_shape)
        size = int(config["BLOCK_SIZE_M"])
        return size if size in BLOCK_SIZES else BLOCK_SIZES[0]

    return block_size


def aligned(logits: Tensor) -> bool:
    """Whether the kernel can read these logits: any rows will do."""
    return logits.stride(-1) == 1


def engine_tables(tables: Blocks, rows: int) -> Routing:
    """The tables of a step of so many rows, in the form of vLLM's functions."""
    N, k, size = tables.num_experts, tables.top_k, tables.block_size(rows)
    pairs = rows * k
    positions = pairs + N * (size - 1)  # for any distribution over experts, as vLLM counts them
    if pairs < N:
        positions = min(pairs * size, positions)
    blocks = (tables.pairs[:positions], tables.tiles[: -(-positions // size)], tables.end) if tables.sorts else None
    return Routing(tables.weights[:pairs].view(rows, k), tables.ids[:pairs].view(rows, k), size, N, blocks)


def route_natively(tables: Blocks, logits: Tensor) -> Routing:
    from vllm.model_executor.layers.fused_moe.router.fused_topk_router import fused_topk

    size, N = tables.block_size(len(logits)), tables.num_experts
    weights, ids, _ = fused_topk(logits, logits, tables.top_k, True)
    return Routing(weights, ids, size, N, stand_in().native(ids, size, N) if tables.sorts else None)


def same_bits(ours: Routing, native: Routing) -> bool:
    """Whether ids, weights and blocks are the same; rows of an expert may be in another order."""
    same = torch.equal(ours.ids, native.ids) and torch.equal(as_bits(ours.weights), as_bits(native.weights))
    if not same or ours.blocks is None or native.blocks is None:
        return same and ours.blocks is native.blocks
    (pairs, tiles, end), (their_pairs, their_tiles, their_end) = ours.blocks, native.blocks
    if end.item() != their_end.item() or pairs.shape != their_pairs.shape or tiles.shape != their_tiles.shape:
        return False
    used = int(end.item())
    tiles, their_tiles = tiles[: used // ours.block_size], their_tiles[: used // ours.block_size]
    return torch.equal(tiles, their_tiles) and torch.equal(*(by_expert(p, tiles, used) for p in (pairs, their_pairs)))


def by_expert(pairs: Tensor, tiles: Tensor, used: int) -> Tensor:
    """The pairs at the positions in use, by expert and then by pair: as if every expert had its rows in order."""
    expert = tiles.repeat_interleave(used // len(tiles)).long()
    return (expert * (int(pairs[:used].max()) + 1) + pairs[:used]).sort().values


def weights_of(routed: Routing) -> Tensor:
    return routed.weights
