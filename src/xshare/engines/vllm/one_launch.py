"""Routing in one launch, on vLLM's Triton path for MXFP4: our kernel leaves what its routing() would return.

Natively that takes four launches after the selection's: top-k, two for a histogram, and one that sorts. The experts'
code calls `triton_kernels.routing.routing` for all of it. While one of our layers computes, a stand-in under that name
returns what our kernel has left. It is used only with versions for which it gave the same bits, and every start checks
that again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from xshare.engines.vllm.routing_check import as_bits
from xshare.engines.vllm.site import Site
from xshare.kernels.plan import Plan
from xshare.kernels.routing_tables import DTYPES, TOP_KS, Tables, most_tiles

VERIFIED = ("0.26.",)  # versions of vLLM with which it was run on a GPU
EXPERTS = "OAITritonMxfp4ExpertsMonolithic"
PARAMETERS = ["logits", "n_expts_act", "sm_first", "expt_indx", "simulated_ep", "n_rows"]  # of routing()
TILES = (16, 32, 64, 128)
ALIGNED = 16  # elements: for other strides Triton compiles vLLM's kernel so that it sums a softmax in another order


class StandIn:
    """Replaces `triton_kernels.routing.routing`, which vLLM looks up at every call."""

    def __init__(self, module: Any) -> None:
        self.module, self.native = module, module.routing
        self.ready: Any = None  # what the next call returns; None: the native routing
        module.routing = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        ready, self.ready = self.ready, None
        return self.native(*args, **kwargs) if ready is None else ready

    def during(self, ready: Any, compute: Callable[[Tensor], Any], logits: Tensor) -> Any:
        """The output of `compute` with the routing that is `ready`."""
        self.ready = ready
        try:
            output = compute(logits)
            if self.ready is not None:
                raise RuntimeError("vLLM's experts have not asked for the routing that xshare had ready for them")
        finally:
            self.ready = None
        return output


def stand_in() -> StandIn:
    """The stand-in, one per process."""
    module = import_module("triton_kernels.routing")  # vLLM's copy, under the name that vLLM gives it
    return module.routing if isinstance(module.routing, StandIn) else StandIn(module)


def not_here(device: torch.device, verified: tuple[str, ...]) -> str | None:
    """Why a path that was run on a GPU with the `verified` versions of vLLM is not taken here, or None."""
    if device.type != "cuda" or torch.version.hip is not None:
        return "there is no NVIDIA GPU"
    import vllm

    known = vllm.__version__.startswith(verified)
    return None if known else f"it was verified with vLLM {verified[0]}x, not {vllm.__version__}"


def why_not(site: Site, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why a layer is routed by vLLM itself, or None."""
    if (reason := not_here(device, VERIFIED)) is not None:
        return reason
    if not site.monolithic or site.backend != EXPERTS:
        return f"the experts are computed by {site.backend}, not {EXPERTS}"
    rule = site.router
    if rule.scoring != "softmax" or not rule.renormalize or rule.top_k not in TOP_KS or rule.n_group > 1:
        return f"it serves softmax over a row's top {', '.join(map(str, TOP_KS))}, not {rule}"
    if dtype not in DTYPES or site.num_experts % ALIGNED:
        return f"it serves 16-bit logits of a multiple of {ALIGNED} experts, not {site.num_experts} of {dtype}"
    if site.runner.routed_experts.expert_map is not None:
        return "experts are spread over devices"
    from vllm.model_executor.layers.fused_moe.experts import gpt_oss_triton_kernels_moe as path

    if not path.use_legacy_triton_kernels:
        return "vLLM has another version of triton_kernels"
    if list(inspect.signature(stand_in().native).parameters) != PARAMETERS:
        return "triton_kernels' routing() has other parameters"
    return None


def make_tables(plan: Plan, site: Site, dtype: torch.dtype, device: torch.device) -> Tables:
    return Tables(plan, site.num_experts, site.top_k, dtype, device)


def engine_tables(tables: Tables, rows: int) -> Any:
    """The tables of a step of so many rows, in the form that routing() returns."""
    module, N, k = stand_in().module, tables.num_experts, tables.top_k
    pairs, tiles = rows * k, most_tiles(rows * k, N)
    gathers, scatters = tables.pairs[:pairs], tables.pairs[pairs : 2 * pairs]
    data = module.ExptData(
        tables.hist,
        tables.offsets[0, : N + 1],
        {size: tables.offsets[1 + place, : N + 1] for place, size in enumerate(TILES)},
        {size: tables.tiles[place, :tiles] for place, size in enumerate(TILES)},
    )
    return (
        module.RoutingData(tables.weights[:pairs], tables.hist, N, k, data),
        module.GatherIndx(src_indx=gathers, dst_indx=scatters),
        module.ScatterIndx(src_indx=scatters, dst_indx=gathers),
    )


def tensors_of(routed: Any) -> Iterable[Tensor]:
    """All tensors in what routing() returns."""
    data, gather, scatter = routed
    yield from (data.gate_scal, data.expt_hist, data.expt_data.hist, data.expt_data.token_offs_raw)
    for size in TILES:
        yield from (data.expt_data.token_offs_pad[size], data.expt_data.block_pid_map[size])
    yield from (gather.src_indx, gather.dst_indx, scatter.src_indx, scatter.dst_indx)


def same_bits(ours: Any, native: Any) -> bool:
    """Whether all tensors have the same shapes, types and bits."""
    return all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(as_bits(a), as_bits(b))
        for a, b in zip(tensors_of(ours), tensors_of(native), strict=True)
    )


def aligned(logits: Tensor) -> bool:
    """Whether rows start where Triton compiles vLLM's kernel as for ours."""
    return logits.stride(0) % ALIGNED == 0 and logits.data_ptr() % (2 * ALIGNED) == 0


def route_natively(tables: Tables, logits: Tensor) -> Any:
    return stand_in().native(logits, tables.top_k, sm_first=False)


def weights_of(routed: Any) -> Tensor:
    weights: Tensor = routed[0].gate_scal
    return weights
