"""How S reaches the engine's own routing rule. There are four modes:

logits   mask the logits: softmax routers, and sigmoid routers without a bias
route    as `logits`, but our kernel also routes, with the same bits as the engine's rule (one_launch.py,
         one_launch_modular.py)
bias     mask the correction bias: routers that rank by score + bias
reroute  replace the engine's ids and weights: routers with groups, which the engine would judge by experts outside S
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from xshare.engines.serving.cpu_selector import ReferenceSelector
from xshare.engines.serving.hooks import Hook, MaskLogits, Reroute, Routed
from xshare.engines.serving.selector import Selector
from xshare.engines.serving.state import ROUTED
from xshare.engines.vllm.site import Site
from xshare.policy import Policy

log = logging.getLogger("vllm.xshare")


def one_launch_of(site: Site) -> Any:
    """The module for routing in one launch on a layer's path."""
    from xshare.engines.vllm import one_launch, one_launch_modular  # need Triton

    return one_launch if site.monolithic else one_launch_modular


class Route(MaskLogits):
    """Hands the experts the kernel's routing where there is one; otherwise masks the logits."""

    mode: ClassVar[str] = ROUTED

    def __init__(self, site: Site, selector: Selector) -> None:
        super().__init__(site, selector)
        self.stand_in = one_launch_of(site).stand_in()
        self.warned = False  # that some logits could not be routed here

    def _ready(self, logits: Tensor) -> Any:
        ready = self.selector.routed(logits)
        if ready is None and self.selector.cannot_route is not None and not self.warned:
            self.warned = True
            log.warning("xshare: %s is routed by vLLM itself for %s", self.name, self.selector.cannot_route)
        return ready

    def route(self, native: Callable[[Tensor], Routed], logits: Tensor) -> Routed:
        ready = self._ready(logits)
        self.stand_in.ready = ready
        return super().route(native, logits) if ready is None else (ready.weights, ready.ids)

    def compute(self, native: Callable[[Tensor], Any], logits: Tensor) -> Any:
        ready = self._ready(logits)
        return super().compute(native, logits) if ready is None else self.stand_in.during(ready, native, logits)


class MaskBias:
    mode: ClassVar[str] = "bias"

    def __init__(self, site: Site, selector: Selector, device: torch.device) -> None:
        self.selector, self.native_bias = selector, site.router.correction_bias
        self.holder = site.runner.routed_experts if site.monolithic else site.runner.router
        # A compiled graph cannot be handed another tensor: on a CPU the masked one stays in place.
        self.stays = device.type == "cpu"
        if site.monolithic:
            self.holder._parameters.pop("e_score_correction_bias", None)  # a plain attribute from here on
            self._place(selector.bias if isinstance(selector, ReferenceSelector) else self.native_bias)

    def _place(self, bias: Tensor | None) -> None:
        self.holder.__dict__["e_score_correction_bias"] = bias

    def _with_masked_bias(self, native: Callable[[Tensor], Any], logits: Tensor) -> Any:
        masked = self.selector.masked_bias(logits)
        if self.stays:
            return native(logits)
        self._place(masked)
        try:
            return native(logits)
        finally:
            self._place(self.native_bias)

    def route(self, native: Callable[[Tensor], Routed], logits: Tensor) -> Routed:
        routed: Routed = self._with_masked_bias(native, logits)
        return routed

    def compute(self, native: Callable[[Tensor], Any], logits: Tensor) -> Any:
        return self._with_masked_bias(native, logits)


def mode_of(site: Site, policy: Policy, device: torch.device) -> str:
    """The mode for a layer, by its router, its path and its device."""
    if site.router.correction_bias is None and policy.method == "xshare":
        return MaskLogits.mode
    maskable = site.monolithic or (device.type == "cuda" and site.router.n_group == 1)
    return MaskBias.mode if maskable else Reroute.mode


def make_hook(mode: str, site: Site, selector: Selector, device: torch.device) -> Hook:
    if mode == MaskBias.mode:
        return MaskBias(site, selector, device)
    if mode == Route.mode:
        return Route(site, selector)
    return MaskLogits(site, selector) if mode == MaskLogits.mode else Reroute(site, selector)
