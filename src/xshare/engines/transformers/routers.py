"""Finds the routers of a Transformers model, and gives each one's rule as a RouterSpec.

In transformers 5.17 to 5.22 every router returns (logits [n, N], weights [n, k], ids [n, k]), and nothing else routes:
to change that triple is to change the routing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from torch import Tensor, nn

from xshare.engines.cpu_name import cpu_name
from xshare.errors import ModelError
from xshare.profile import model_hash
from xshare.router import RouterSpec

# Class names, and whether the weights are renormalised; None where the configuration says (norm_topk_prob).
RENORMALIZE: dict[str, bool | None] = {
    "GptOssTopKRouter": True,
    "Qwen3MoeTopKRouter": None,
    "Qwen2MoeTopKRouter": None,
    "OlmoeTopKRouter": None,
    "MixtralTopKRouter": True,
    "DeepseekV3TopkRouter": None,
}
SUPPORTED = "gpt-oss, Qwen3-MoE, Qwen2-MoE, OLMoE, Mixtral and DeepSeek-V3"
MOE_NAMES = re.compile(
    r"(Router|Experts|MoE|Moe|SparseMoeBlock)$"
)  # names of the parts of an MoE layer in Transformers


@dataclass(frozen=True)
class Router:
    name: str  # "model.layers.3.mlp.gate"
    number: int  # 3, in the model
    module: Any

    @property
    def num_experts(self) -> int:
        return int(self.module.num_experts)

    @property
    def bias(self) -> Tensor | None:
        """Its correction bias. Moving the model replaces the tensor, so it is read at every call."""
        bias: Tensor | None = getattr(self.module, "e_score_correction_bias", None)
        return bias

    def spec(self) -> RouterSpec:
        """Its rule, read at every call."""
        router = self.module
        renormalize = RENORMALIZE[type(router).__name__]
        if renormalize is None:
            renormalize = bool(router.norm_topk_prob)
        if type(router).__name__ != "DeepseekV3TopkRouter":
            return RouterSpec.softmax(router.top_k, renormalize=renormalize, num_experts=self.num_experts)
        return RouterSpec.sigmoid(
            router.top_k,
            correction_bias=None if self.bias is None else self.bias.detach(),
            n_group=router.num_group,
            topk_group=router.topk_group,
            routed_scaling_factor=router.routed_scaling_factor,
            renormalize=renormalize,
            num_experts=self.num_experts,
        )


def staircase_conditions(model: Any, routers: list[Router]) -> dict[str, Any]:
    """The conditions under which a model runs with selection in these layers, by the names in a staircase's file."""
    return {
        "engine": "transformers",
        "version": metadata.version("transformers"),
        "device": str(model.device),
        "cpu": cpu_name() if model.device.type == "cpu" else None,
        "backend": model.config.get_text_config()._experts_implementation,
        "dtype": str(model.dtype).removeprefix("torch."),
        "experts": routers[0].num_experts,
        "top_k": routers[0].spec().top_k,
        "layers": len(routers),
        "config": model_hash(model.config.get_text_config()),
    }


def find_routers(model: Any) -> tuple[nn.Module, list[Router]]:
    """The decoder, whose forward pass is one step of all layers, and its routers in order."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"model must be a Transformers model, not {type(model).__name__}")
    by_decoder: dict[str, list[Router]] = {}
    for name, module in model.named_modules():
        match = re.match(r"(?:(.*)\.)?layers\.(\d+)\.", name)
        if match and type(module).__name__ in RENORMALIZE and type(module).__module__.startswith("transformers."):
            by_decoder.setdefault(match[1] or "", []).append(Router(name, int(match[2]), module))
    kind = type(model).__name__
    if not by_decoder:
        parts = [type(module).__name__ for module in model.modules() if MOE_NAMES.search(type(module).__name__)]
        why = f"its {parts[0]} is not known" if parts else "it has no mixture-of-experts layer"
        raise ModelError(f"{kind} cannot be served, {why}: supported are {SUPPORTED}")
    if len(by_decoder) > 1:
        raise ModelError(
            f"{kind} has {len(by_decoder)} decoders with experts ({', '.join(by_decoder)}), expected one: apply to it"
        )
    (decoder, routers), *_ = by_decoder.items()
    for router in routers:
        experts = getattr(model.get_submodule(router.name.rpartition(".")[0]), "experts", None)
        if getattr(experts, "num_experts", router.num_experts) != router.num_experts:
            raise ModelError(f"{kind} is spread over ranks by expert parallelism, expected every expert on each rank")
    return model.get_submodule(decoder), routers
