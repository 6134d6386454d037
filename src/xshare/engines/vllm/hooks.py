"""How S reaches the engine's own routing rule, which does the refinement: in four ways.

logits   masked logits: softmax routers, and sigmoid ones without a bias
route    the same without the engine's rule, whose bits our kernel gives by itself (one_launch.py)
bias     a masked correction bias: routers that rank by score + bias
reroute  the engine's ids and weights replaced by ours: groups, which the engine would judge by experts outside S too
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


class Route(MaskLogits):
    """Where the kernel has done all of routing, the experts are handed that; otherwise as above."""

    mode: ClassVar[str] = ROUTED

    def __init__(self, site: Site, selector: Selector) -> None:
        from xshare.engines.vllm.one_launch import stand_in  # needs Triton

        super().__init__(site, selector)
        self.stand_in = stand_in()
        self.said = False  # that some logits could not be routed here

    def compute(self, native: Callable[[Tensor], Any], logits: Tensor) -> Any:
        ready = self.selector.routed(logits)
        if ready is not None:
            return self.stand_in.during(ready, native, logits)
        if self.selector.cannot_route is not None and not self.said:
            self.said = True
            log.warning("xshare: %s is routed by vLLM itself for %s", self.name, self.selector.cannot_route)
        return super().compute(native, logits)


class MaskBias:
    mode: ClassVar[str] = "bias"

    def __init__(self, site: Site, selector: Selector, device: torch.device) -> None:
        self.selector, self.own = selector, site.router.correction_bias
        self.holder = site.runner.routed_experts if site.monolithic else site.runner.router
        # A compiled graph cannot be handed another tensor: on a CPU the one that is masked lies there for good.
        self.for_good = device.type == "cpu"
        if site.monolithic:
            self.holder._parameters.pop("e_score_correction_bias", None)  # a plain attribute from here on
            self._place(selector.bias if isinstance(selector, ReferenceSelector) else self.own)

    def _place(self, bias: Tensor | None) -> None:
        self.holder.__dict__["e_score_correction_bias"] = bias

    def _inside(self, native: Callable[[Tensor], Any], logits: Tensor) -> Any:
        masked = self.selector.masked_bias(logits)
        if self.for_good:
            return native(logits)
        self._place(masked)
        try:
            return native(logits)
        finally:
            self._place(self.own)

    def route(self, native: Callable[[Tensor], Routed], logits: Tensor) -> Routed:
        routed: Routed = self._inside(native, logits)
        return routed

    def compute(self, native: Callable[[Tensor], Any], logits: Tensor) -> Any:
        return self._inside(native, logits)


def mode_of(site: Site, policy: Policy, device: torch.device) -> str:
    """The way for a layer, by its router, its path and where it runs."""
    if site.router.correction_bias is None and policy.method == "xshare":
        return MaskLogits.mode
    in_front = site.monolithic or (device.type == "cuda" and site.router.n_group == 1)
    return MaskBias.mode if in_front else Reroute.mode


def make_hook(mode: str, site: Site, selector: Selector, device: torch.device) -> Hook:
    if mode == MaskBias.mode:
        return MaskBias(site, selector, device)
    if mode == Route.mode:
        return Route(site, selector)
    return MaskLogits(site, selector) if mode == MaskLogits.mode else Reroute(site, selector)
