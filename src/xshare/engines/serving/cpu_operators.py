"""Selection on a CPU engine, as opaque operators: torch.compile traces vLLM's layers there, and must not look inside.

Operators find their layer by its name in the model. A compiled graph holds that name, and vLLM keeps compiled graphs
for later engines and processes: they find the layer of the engine that runs there.
"""

from __future__ import annotations

from itertools import count
from typing import Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from xshare.router import RouterSpec
from xshare.routing import Routing


class Decides(Protocol):
    """A layer, as far as the operators know it."""

    router: RouterSpec

    def decide(self, logits: Tensor) -> Routing | None: ...


LAYERS: WeakValueDictionary[str, Decides] = WeakValueDictionary()  # an engine that has gone frees its model


def enroll(layer: Decides, name: str) -> str:
    """The layer's name, or with a number where another engine of this process has one of that name."""
    names = (name if n == 0 else f"{name}#{n}" for n in count())
    key = next(each for each in names if each not in LAYERS)
    LAYERS[key] = layer
    return key


def masked(logits: Tensor, S: Tensor) -> Tensor:
    """The lowest finite value outside S, half of that for -inf inside, which must not come after what is outside."""
    lowest = torch.finfo(logits.dtype).min
    return logits.masked_fill(logits.isneginf(), lowest / 2).masked_fill(~S, lowest)


@torch.library.custom_op("xshare::mask_logits", mutates_args=())
def mask_logits(logits: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    """-> logits with the lowest finite value outside S, and each row's share of the score inside S, float32 [n, 1]; 1
    where weights are renormalised"""
    routing = LAYERS[layer].decide(logits)
    if routing is None:
        return logits.clone(), torch.ones(len(logits), 1)
    router = LAYERS[layer].router
    if router.renormalize:  # nobody asks for the share
        return masked(logits, routing.selected), torch.ones(len(logits), 1)
    kept = router.score(logits.double()).masked_fill(~routing.selected, 0).sum(-1, keepdim=True)
    return masked(logits, routing.selected), kept.nan_to_num(1).float()


@mask_logits.register_fake
def _(logits: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(logits), logits.new_empty((logits.shape[0], 1), dtype=torch.float32)


@torch.library.custom_op("xshare::mask_bias", mutates_args=("bias",))
def mask_bias(logits: Tensor, bias: Tensor, layer: str) -> None:
    """The layer's correction bias, with the lowest finite value outside S, into `bias` [N]."""
    routing = LAYERS[layer].decide(logits)
    own = LAYERS[layer].router.correction_bias
    assert own is not None
    bias.copy_(own if routing is None else own.masked_fill(~routing.selected, torch.finfo(bias.dtype).min))


@mask_bias.register_fake
def _(logits: Tensor, bias: Tensor, layer: str) -> None:
    return None


@torch.library.custom_op("xshare::reroute", mutates_args=())
def reroute(logits: Tensor, weights: Tensor, ids: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    """-> the engine's own weights and ids [n, k], or ours where selection acts and leaves an expert out"""
    routing = LAYERS[layer].decide(logits)
    if routing is None or bool(routing.selected.all()):
        return weights.clone(), ids.clone()
    return routing.weights.to(weights.dtype), routing.ids.to(ids.dtype)


@reroute.register_fake
def _(logits: Tensor, weights: Tensor, ids: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(weights), torch.empty_like(ids)
