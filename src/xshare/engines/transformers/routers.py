"""Transformers' routers: where they are in a model, and each one's rule as a RouterSpec.

All of them return (logits [n, N], weights [n, k], ids [n, k]) in transformers 5.17 to 5.22, and nothing is routed
elsewhere: whoever changes that triple has changed the routing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

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
MOE_NAMES = re.compile(r"(Router|Experts|MoE|Moe|SparseMoeBlock)$")  # how Transformers calls the parts of such a layer


@dataclass(frozen=True)
class Router:
    name: str  # "model.layers.3.mlp.gate"
    number: int  # 3, the model's own
    module: Any

    @property
    def num_experts(self) -> int:
        return int(self.module.num_experts)

    @property
    def bias(self) -> Tensor | None:
        """Its correction bias: a model that is moved gets another tensor."""
        found: Tensor | None = getattr(self.module, "e_score_correction_bias", None)
        return found

    def spec(self) -> RouterSpec:
        """Its rule, read afresh."""
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


def where(model: Any, routers: list[Router]) -> dict[str, Any]:
    """Where a model runs with selection in these layers, by the names that a staircase has for it (stairs.WHERE)."""
    return {
        "engine": "transformers",
        "device": str(model.device),
        "backend": model.config.get_text_config()._experts_implementation,
        "dtype": str(model.dtype).removeprefix("torch."),
        "experts": routers[0].num_experts,
        "top_k": routers[0].spec().top_k,
        "layers": len(routers),
        "config": model_hash(model.config.get_text_config()),
    }


def find(model: Any) -> tuple[nn.Module, list[Router]]:
    """The decoder, whose forward pass is one step of all layers, and its routers in order."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"model must be a Transformers model, not {type(model).__name__}")
    found: dict[str, list[Router]] = {}
    for name, module in model.named_modules():
        place = re.match(r"(?:(.*)\.)?layers\.(\d+)\.", name)
        if place and type(module).__name__ in RENORMALIZE and type(module).__module__.startswith("transformers."):
            found.setdefault(place[1] or "", []).append(Router(name, int(place[2]), module))
    kind = type(model).__name__
    if not found:
        parts = [type(module).__name__ for module in model.modules() if MOE_NAMES.search(type(module).__name__)]
        why = f"its {parts[0]} is not known" if parts else "it has no mixture-of-experts layer"
        raise ModelError(f"{kind} cannot be served, {why}: supported are {SUPPORTED}")
    if len(found) > 1:
        raise ModelError(
            f"{kind} has {len(found)} decoders with experts ({', '.join(found)}), expected one: apply to it"
        )
    (where, routers), *_ = found.items()
    for router in routers:
        experts = getattr(model.get_submodule(router.name.rpartition(".")[0]), "experts", None)
        if getattr(experts, "num_experts", router.num_experts) != router.num_experts:
            raise ModelError(f"{kind} is spread over ranks by expert parallelism, expected every expert on each rank")
    return model.get_submodule(where), routers
