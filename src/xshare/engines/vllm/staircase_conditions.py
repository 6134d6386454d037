"""The conditions under which an engine runs, by the names in a staircase's file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from xshare.engines.cpu_name import cpu_name
from xshare.engines.serving.layer_facts import Facts
from xshare.engines.serving.settings import SettingsError
from xshare.profile import model_hash


def staircase_conditions(config: Any, layers: Sequence[Facts] = ()) -> dict[str, Any]:
    """From vLLM's configuration and the layers of all pipeline stages that are acted on. Without layers: only what is
    known before a model is loaded. Asking for the GPU's name in the process that starts workers would initialise CUDA
    there, and keep forked workers from using it."""
    import vllm

    conditions = {
        "engine": "vllm",
        "version": str(vllm.__version__),
        "cpu": processor(config),
        "dtype": dtype_name(config),
        "config": model_hash(config.model_config.hf_text_config),
        "tensor_parallel": config.parallel_config.tensor_parallel_size,
        "expert_parallel": bool(config.parallel_config.enable_expert_parallel),
    }
    if not layers:
        return conditions
    experts = {layer.experts for layer in layers}
    if len(experts) > 1:
        raise SettingsError(f"cost in xshare needs layers of as many experts each, and these have {sorted(experts)}")
    return conditions | {
        "device": device_name(config),
        "backend": layers[0].backend,
        "experts": experts.pop(),
        "top_k": max(layer.top_k for layer in layers),
        "layers": len(layers),
        "expert_bytes": bytes_of_an_expert(layers),
        "host_layers": sum(layer.in_host_memory for layer in layers),
    }


def bytes_of_an_expert(layers: Sequence[Facts]) -> int | None:
    """In all layers together; None where one is unknown."""
    sizes = [layer.expert_bytes for layer in layers]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def device_name(config: Any) -> str:
    kind = config.device_config.device_type
    return torch.cuda.get_device_name() if kind == "cuda" else str(kind)


def processor(config: Any) -> str | None:
    return cpu_name() if config.device_config.device_type == "cpu" else None


def dtype_name(config: Any) -> str:
    return str(config.model_config.dtype).removeprefix("torch.")
