"""What a step reads for one expert: its weights as the engine holds them, in whatever form its kernel takes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

# Plausible bits per weight: int4 and MXFP4 are above 4, and unquantised weights are as wide as the activations.
# Anything else means a backend that keeps its weights elsewhere, or twice.
FEWEST_BITS, SLACK = 3.0, 1.25  # biases and scales are counted too


def expert_bytes(runner: Any) -> int | None:
    """Bytes of one expert on this rank, or None where its weights are not found."""
    experts, moe = runner.routed_experts, runner.moe_config
    method = getattr(experts.quant_method, "old_quant_method", experts.quant_method)
    # Weights that triton_kernels swizzled (MXFP4) are attributes, not parameters. The method holds their scales.
    holders = [experts, *(getattr(method, f"{name}_precision_config", None) for name in ("w13", "w2"))]
    swizzled = [tensor for holder in holders if holder is not None for tensor in _swizzled(holder)]
    size = sum(int(tensor.nbytes) for tensor in (*experts.parameters(), *swizzled)) / moe.num_local_experts
    matrices = 3 if moe.is_act_and_mul else 2
    bits = 8 * size / (matrices * moe.hidden_dim * moe.intermediate_size_per_partition)
    return round(size) if FEWEST_BITS <= bits <= SLACK * 8 * moe.in_dtype.itemsize else None


def backend(runner: Any) -> str:
    """The kernel that computes a layer's experts: vLLM's class for it, or else the quantisation method's."""
    method = runner.routed_experts.quant_method
    experts = getattr(getattr(method, "moe_kernel", None), "fused_experts", None)
    kernel = getattr(method, "experts_cls", None) if experts is None else type(experts)
    return (kernel or type(method)).__name__


def in_host_memory(runner: Any) -> bool:
    """Whether the GPU reads this layer's experts from host memory (`--cpu-offload-gb`)."""
    experts = list(runner.routed_experts.parameters())
    large = max((weight.nbytes for weight in experts), default=0) / 2  # not scales and biases
    return bool(experts) and all(
        getattr(weight, "_vllm_is_uva_offloaded", False) for weight in experts if weight.nbytes >= large
    )


def rows_unshared(num_experts: int, top_k: int) -> int:
    """Rows up to which vLLM does not sort rows by expert, but loads experts once per row (fused_moe, in 0.26 to 0.32:
    rows * k * 4 <= N). From GPU memory, a second load of an expert hits the cache. From host memory it crosses the bus
    again, so sharing experts saves nothing."""
    return num_experts // (4 * top_k)


def _swizzled(holder: Any) -> list[Tensor]:
    """Tensors inside the attributes that are a triton_kernels Tensor."""
    inside = [getattr(getattr(value, "storage", None), "data", None) for value in vars(holder).values()]
    return [tensor for tensor in inside if isinstance(tensor, Tensor)]
