"""One MoE layer with selection in front of its router, SGLang's TopK.

TopK is wrapped on the instance, because drafters have routers of the same class. Models call it as a module, which
calls one of its methods depending on the platform, or they call such a method themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from torch import Tensor

from xshare.engines.gates import Tally
from xshare.engines.serving.compiled import Compiled
from xshare.engines.serving.cpu_selector import ReferenceSelector
from xshare.engines.serving.hooks import MaskLogits, Reroute, rescales
from xshare.engines.serving.layer_buffers import Buffers, LayerGroup
from xshare.engines.serving.ranks import Ranks
from xshare.engines.serving.selector import Selector
from xshare.engines.serving.step import Step
from xshare.engines.serving.step_sizes import Sizes
from xshare.engines.sglang.site import Site
from xshare.policy import Policy

METHODS = ("forward_native", "forward_cuda", "forward_cpu")  # of TopK


@dataclass(eq=False)
class Layer:
    site: Site
    selector: Selector
    mode: str
    buffers: Buffers
    called: bool = False  # since it was attached; a layer that is never called routes past its TopK

    def attach(self) -> None:
        topk = self.site.topk
        for name in METHODS:
            setattr(topk, name, self._with_selection(getattr(topk, name)))
        # 0.5.16 chose the method when it built the layer, so it chooses again here; later versions choose when called.
        dispatch = getattr(topk, "dispatch_forward", None)
        topk._forward_method = None if dispatch is None else dispatch()

    def follow_replicas(self) -> None:
        """Nothing to do: engines that move experts are refused."""

    def _with_selection(self, native: Callable[..., Any]) -> Callable[..., Any]:
        route = self._mask_logits if self.mode == MaskLogits.mode else self._reroute

        @wraps(native)
        def forward(hidden_states: Tensor, router_logits: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.called = True

            def routed(logits: Tensor) -> Any:
                return native(hidden_states, logits, *args, **kwargs)

            return route(routed, router_logits)

        return forward

    def _mask_logits(self, routed: Callable[[Tensor], Any], logits: Tensor) -> Any:
        masked, share = self.selector.masked(logits)
        out = routed(masked)
        if share is None or not rescales(self.site):
            return out
        return out._replace(topk_weights=out.topk_weights * share.to(out.topk_weights.dtype))

    def _reroute(self, routed: Callable[[Tensor], Any], logits: Tensor) -> Any:
        out = routed(logits)
        weights, ids = self.selector.rerouted(logits, out.topk_weights, out.topk_ids)
        return out._replace(topk_weights=weights, topk_ids=ids)


def make_layers(
    sites: Sequence[Site],
    policy: Policy,
    groups: Sequence[LayerGroup],
    step: Step,
    sizes: Sizes,
    tally: Tally,
    compiled: Compiled,
    ranks: Ranks | None,
) -> list[Layer]:
    """See MakesLayers. SGLang routes, never the selection; `ranks` are not supported yet."""
    buffers = {place: layer_buffers for group in groups for place, layer_buffers in group.buffers().items()}
    pool: Any = None
    layers = []
    policies = policy.by_layer([site.number for site in sites])
    for place, (site, layer_policy) in enumerate(zip(sites, policies, strict=True)):
        mode = site.mode(policy)
        selector: Selector
        if step.device.type == "cuda":
            from xshare.engines.serving.gpu_selector import FusedSelector, Pool  # needs Triton

            pool = pool or Pool()
            selector = FusedSelector(
                site,
                buffers[place],
                step,
                sizes,
                layer_policy,
                compiled=compiled,
                mask_logits=mode == MaskLogits.mode,
                with_share=mode == MaskLogits.mode and rescales(site),  # other modes do not need it
                reroutes=mode == Reroute.mode,
                routes=None,
                pool=pool,
            )
        else:
            selector = ReferenceSelector(site, buffers[place], step, tally, layer_policy)
        layers.append(Layer(site, selector, mode, buffers[place]))
    return layers
