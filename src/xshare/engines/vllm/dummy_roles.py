"""The role of each module of a vLLM model, which decides its dummy weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

# fusion and draft output: the first layer of an EAGLE-3 head, and the end of its MLP
Kind = Literal["embedding", "head", "router", "fusion", "output", "draft output", "experts", "centred norm", "other"]


@dataclass(frozen=True)
class Role:
    kind: Kind = "other"
    shard: str = ""  # names the rank where the module is sharded; empty where it is replicated
    parts: int = 1  # ranks over which the fan-in of an output projection is spread
    first: int = 0  # token id of the first row


def roles_of(model: nn.Module, experts: int) -> Iterator[tuple[str, Any, Role]]:
    """Path, module and role of every module; `experts`: how many a router has."""
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm
    from vllm.model_executor.layers.linear import ColumnParallelLinear, RowParallelLinear
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    embeddings: list[Any] = []
    modules = list(model.named_modules())
    drafts = any(path.endswith("model.fc") for path, _ in modules)
    for path, module in modules:
        role, weight = Role(), getattr(module, "weight", None)
        if isinstance(module, ParallelLMHead):
            if any(weight is embedding for embedding in embeddings):
                continue  # tied
            role = Role("head", first=module.shard_indices.org_vocab_start_index)
        elif isinstance(module, VocabParallelEmbedding):
            embeddings.append(weight)
            role = Role("embedding", first=module.shard_indices.org_vocab_start_index)
        elif isinstance(module, RoutedExperts):
            moe = module.moe_config
            role = Role("experts", f"tp{moe.tp_rank}/ep{moe.ep_rank}", moe.tp_size)
        elif isinstance(module, RowParallelLinear):
            role = Role("draft output" if drafts and "mlp" in path else "output", f"tp{module.tp_rank}")
        elif isinstance(module, ColumnParallelLinear):
            role = Role("other", f"tp{module.tp_rank}")
        elif isinstance(module, GemmaRMSNorm):
            role = Role("centred norm")  # it multiplies by one plus its weight
        elif ("router" in path or "gate" in path) and weight is not None and _rows(module) == experts:
            role = Role("router")
        elif path.endswith("model.fc"):
            role = Role("fusion")
        yield path, module, role


def _rows(module: Any) -> int:
    """The output size that the module declares: on a CPU vLLM repacks its weight."""
    return int(getattr(module, "output_size", 0) or module.weight.shape[0])
