"""What a step reads for one expert: its weights as the engine holds them, in whatever form its kernel takes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

# Bits a weight that are believed: int4 and MXFP4 are above 4, and unquantised weights are as wide as the activations.
# Anything else is a backend that keeps its weights elsewhere, or twice.
FEWEST_BITS, SLACK = 3.0, 1.25  # biases and scales are counted too


def expert_bytes(runner: Any) -> int | None:
    """Of one expert on this rank, or None where they are not found."""
    experts, moe = runner.routed_experts, runner.moe_config
    method = getattr(experts.quant_method, "old_quant_method", experts.quant_method)
    # What triton_kernels swizzled (MXFP4) is no parameter any more: weights are attributes, their scales the method's.
    holders = [experts, *(getattr(method, f"{name}_precision_config", None) for name in ("w13", "w2"))]
    swizzled = [tensor for holder in holders if holder is not None for tensor in _swizzled(holder)]
    size = sum(int(tensor.nbytes) for tensor in (*experts.parameters(), *swizzled)) / moe.num_local_experts
    matrices = 3 if moe.is_act_and_mul else 2
    bits = 8 * size / (matrices * moe.hidden_dim * moe.intermediate_size_per_partition)
    return round(size) if FEWEST_BITS <= bits <= SLACK * 8 * moe.in_dtype.itemsize else None


def backend(runner: Any) -> str:
    """The kernel that computes a layer's experts: the class that vLLM has for it, or the method's that has none."""
    method = runner.routed_experts.quant_method
    experts = getattr(getattr(method, "moe_kernel", None), "fused_experts", None)
    named = getattr(method, "experts_cls", None) if experts is None else type(experts)
    return (named or type(method)).__name__


def in_host_memory(runner: Any) -> bool:
    """Whether the GPU reads this layer's experts from host memory, where they lie (`--cpu-offload-gb`)."""
    experts = list(runner.routed_experts.parameters())
    large = max((weight.nbytes for weight in experts), default=0) / 2  # not scales and biases
    return bool(experts) and all(
        getattr(weight, "_vllm_is_uva_offloaded", False) for weight in experts if weight.nbytes >= large
    )


def rows_unshared(num_experts: int, top_k: int) -> int:
    """Rows up to which vLLM does not sort them by expert, but loads each row's experts for it alone (fused_moe, in 0.26
    to 0.32: rows * k * 4 <= N). On the GPU the second row finds them in the cache; what lies in host memory crosses the
    bus again, and an expert that is shared saves nothing."""
    return num_experts // (4 * top_k)


def _swizzled(holder: Any) -> list[Tensor]:
    """Tensors inside the attributes that are a triton_kernels Tensor."""
    inside = [getattr(getattr(value, "storage", None), "data", None) for value in vars(holder).values()]
    return [tensor for tensor in inside if isinstance(tensor, Tensor)]
