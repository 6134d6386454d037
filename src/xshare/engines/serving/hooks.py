"""How S reaches an engine's own routing rule: by masked logits, or by replacing the ids and weights that it returns.

An engine may add hooks of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from torch import Tensor

from xshare.engines.serving.selector import Selector
from xshare.engines.serving.settings import SettingsError
from xshare.engines.serving.site import Site

Routed = tuple[Tensor, Tensor]  # weights, ids [n, k]


class Hook(Protocol):
    mode: ClassVar[str]

    def route(self, native: Callable[[Tensor], Routed], logits: Tensor) -> Routed:
        """On the router path: weights and ids of `native`, restricted to S."""

    def compute(self, native: Callable[[Tensor], Any], logits: Tensor) -> Any:
        """On the monolithic path: the output of experts whose kernel also routes, restricted to S."""


class MaskLogits:
    mode: ClassVar[str] = "logits"

    def __init__(self, site: Site, selector: Selector) -> None:
        self.name, self.selector, self.rescales = site.name, selector, rescales(site)

    def route(self, native: Callable[[Tensor], Routed], logits: Tensor) -> Routed:
        masked, share = self.selector.masked(logits)
        weights, ids = native(masked)
        return (weights * share if self.rescales and share is not None else weights), ids

    def compute(self, native: Callable[[Tensor], Any], logits: Tensor) -> Any:
        masked, share = self.selector.masked(logits)
        out = native(masked)
        if share is None or not self.rescales:
            return out
        if not isinstance(out, Tensor):
            raise SettingsError(f"{self.name} leaves its output unfinished, which xshare cannot rescale: skip it")
        return out * share.to(out.dtype)


class Reroute:
    mode: ClassVar[str] = "reroute"

    def __init__(self, site: Site, selector: Selector) -> None:
        self.name, self.selector = site.name, selector

    def route(self, native: Callable[[Tensor], Routed], logits: Tensor) -> Routed:
        return self.selector.rerouted(logits, *native(logits))

    def compute(self, native: Callable[[Tensor], Any], logits: Tensor) -> Any:
        raise SettingsError(f"{self.name} routes inside its kernel, where its ids cannot be replaced: skip it")


def rescales(site: Site) -> bool:
    """Whether weights are plain softmax scores: masking experts outside S would inflate those inside."""
    return site.router.scoring == "softmax" and not site.router.renormalize
