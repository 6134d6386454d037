"""Selection on a CPU engine, as opaque operators: torch.compile traces vLLM's layers there, and must not look inside.

Operators find their layer by number, because an operator's arguments are tensors and numbers.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import torch
from torch import Tensor

if TYPE_CHECKING:
    from xshare.engines.vllm.layer import Layer

LAYERS: WeakValueDictionary[int, Layer] = WeakValueDictionary()  # an engine that has gone frees its model
_numbers = count()


def enroll(layer: Layer) -> int:
    number = next(_numbers)
    LAYERS[number] = layer
    return number


@torch.library.custom_op("xshare::mask_logits", mutates_args=())
def mask_logits(logits: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """-> logits with the lowest finite value outside S, and each row's share of the score inside S, float32 [n, 1]"""
    routing = LAYERS[layer].decide(logits)
    if routing is None:
        return logits.clone(), torch.ones(len(logits), 1)
    kept = LAYERS[layer].router.score(logits.double()).masked_fill(~routing.selected, 0).sum(-1, keepdim=True)
    return logits.masked_fill(~routing.selected, torch.finfo(logits.dtype).min), kept.nan_to_num(1).float()


@mask_logits.register_fake
def _(logits: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(logits), logits.new_empty((logits.shape[0], 1), dtype=torch.float32)


@torch.library.custom_op("xshare::mask_bias", mutates_args=("bias",))
def mask_bias(logits: Tensor, bias: Tensor, layer: int) -> None:
    """The layer's correction bias, with the lowest finite value outside S, into `bias` [N]."""
    routing = LAYERS[layer].decide(logits)
    own = LAYERS[layer].router.correction_bias
    assert own is not None
    bias.copy_(own if routing is None else own.masked_fill(~routing.selected, torch.finfo(bias.dtype).min))


@mask_bias.register_fake
def _(logits: Tensor, bias: Tensor, layer: int) -> None:
    return None


@torch.library.custom_op("xshare::reroute", mutates_args=())
def reroute(logits: Tensor, weights: Tensor, ids: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """-> the engine's own weights and ids [n, k], or ours where selection acts and leaves an expert out"""
    routing = LAYERS[layer].decide(logits)
    if routing is None or bool(routing.selected.all()):
        return weights.clone(), ids.clone()
    return routing.weights.to(weights.dtype), routing.ids.to(ids.dtype)


@reroute.register_fake
def _(logits: Tensor, weights: Tensor, ids: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(weights), torch.empty_like(ids)
