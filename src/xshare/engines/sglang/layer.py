"""One MoE layer with selection in front of its router: SGLang's TopK, in whichever form its experts take routing.

It is wrapped on the instance, as drafters have routers of the same class. Models call it as a module, which leads to
one of its methods by the platform, or call such a method themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from torch import Tensor

from xshare.engines.gates import Tally
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
    called: bool = False  # since it was attached: a layer that is not has a way around its router

    def attach(self) -> None:
        topk = self.site.topk
        for name in METHODS:
            setattr(topk, name, self._selecting(getattr(topk, name)))
        # Which of them it is was worked out when the layer was made (0.5.16), or is when it is first called.
        dispatch = getattr(topk, "dispatch_forward", None)
        topk._forward_method = None if dispatch is None else dispatch()

    def follow_replicas(self) -> None:
        """Experts stay where they are: others are refused."""

    def _selecting(self, native: Callable[..., Any]) -> Callable[..., Any]:
        route = self._masked if self.mode == MaskLogits.mode else self._replaced

        @wraps(native)
        def forward(hidden_states: Tensor, router_logits: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.called = True

            def routed(logits: Tensor) -> Any:
                return native(hidden_states, logits, *args, **kwargs)

            return route(routed, router_logits)

        return forward

    def _masked(self, routed: Callable[[Tensor], Any], logits: Tensor) -> Any:
        masked, share = self.selector.masked(logits)
        out = routed(masked)
        if share is None or not rescales(self.site):
            return out
        return out._replace(topk_weights=out.topk_weights * share.to(out.topk_weights.dtype))

    def _replaced(self, routed: Callable[[Tensor], Any], logits: Tensor) -> Any:
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
    *,
    never_within: int,
    thresholds: frozenset[str],
    one_launch: bool,
    protects: bool,
    ranks: Ranks | None,
) -> list[Layer]:
    """As MakesLayers has it. Routing is left to SGLang, whatever `one_launch` says; there are no `ranks` yet."""
    buffers = {place: mine for group in groups for place, mine in group.buffers().items()}
    pool: Any = None
    layers = []
    for place, (site, own) in enumerate(zip(sites, policy.by_layer([site.number for site in sites]), strict=True)):
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
                own,
                never_within=never_within,
                thresholds=thresholds,
                protects=protects,
                mask_logits=mode == MaskLogits.mode,
                with_share=mode == MaskLogits.mode and rescales(site),  # nobody else needs it
                reroutes=mode == Reroute.mode,
                routes=None,
                pool=pool,
            )
        else:
            selector = ReferenceSelector(site, buffers[place], step, tally, own)
        layers.append(Layer(site, selector, mode, buffers[place]))
    return layers
