"""Selection on a CPU engine, as opaque operators: torch.compile traces vLLM's layers there, and must not look inside.

An operator finds its layer by the layer's name in the model. A compiled graph holds that name, and vLLM caches compiled
graphs: a graph that a later engine or process loads finds the layer of that engine.
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
    """What the operators need of a layer."""

    router: RouterSpec

    def decide(self, logits: Tensor) -> Routing | None: ...


LAYERS: WeakValueDictionary[str, Decides] = WeakValueDictionary()  # does not keep a closed engine's model alive


def register(layer: Decides, name: str) -> str:
    """The key under which operators find the layer: its name, numbered where another engine of this process has it."""
    names = (name if n == 0 else f"{name}#{n}" for n in count())
    key = next(unused for unused in names if unused not in LAYERS)
    LAYERS[key] = layer
    return key


def masked(logits: Tensor, S: Tensor) -> Tensor:
    """Logits with the lowest finite value outside S. A -inf inside S becomes half of that, so that it ranks before."""
    lowest = torch.finfo(logits.dtype).min
    return logits.masked_fill(logits.isneginf(), lowest / 2).masked_fill(~S, lowest)


@torch.library.custom_op("xshare::mask_logits", mutates_args=())
def mask_logits(logits: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    """Logits with the lowest finite value outside S, and each row's share of the score inside S, float32 [n, 1]. The
    share is 1 where weights are renormalised."""
    routing = LAYERS[layer].decide(logits)
    if routing is None:
        return logits.clone(), torch.ones(len(logits), 1)
    router = LAYERS[layer].router
    if router.renormalize:  # the share is not used
        return masked(logits, routing.selected), torch.ones(len(logits), 1)
    share = router.score(logits.double()).masked_fill(~routing.selected, 0).sum(-1, keepdim=True)
    return masked(logits, routing.selected), share.nan_to_num(1).float()


@mask_logits.register_fake
def _(logits: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(logits), logits.new_empty((logits.shape[0], 1), dtype=torch.float32)


@torch.library.custom_op("xshare::mask_bias", mutates_args=("bias",))
def mask_bias(logits: Tensor, bias: Tensor, layer: str) -> None:
    """Write the layer's correction bias, with the lowest finite value outside S, into `bias` [N]."""
    routing = LAYERS[layer].decide(logits)
    native = LAYERS[layer].router.correction_bias
    assert native is not None
    bias.copy_(native if routing is None else native.masked_fill(~routing.selected, torch.finfo(bias.dtype).min))


@mask_bias.register_fake
def _(logits: Tensor, bias: Tensor, layer: str) -> None:
    return None


@torch.library.custom_op("xshare::reroute", mutates_args=())
def reroute(logits: Tensor, weights: Tensor, ids: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    """The engine's weights and ids [n, k], or ours where selection acts and leaves an expert out."""
    routing = LAYERS[layer].decide(logits)
    if routing is None or bool(routing.selected.all()):
        return weights.clone(), ids.clone()
    return routing.weights.to(weights.dtype), routing.ids.to(ids.dtype)


@reroute.register_fake
def _(logits: Tensor, weights: Tensor, ids: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(weights), torch.empty_like(ids)
