"""One MoE layer with selection in front of its router, on the path that the layer takes.

vLLM forks in MoERunner._apply_quant_method. On the *router* path it calls router.select_experts, and we replace that
router's `_compute_routing`: its ids are logical, before replicas are chosen and before anything records them. On the
*monolithic* path the experts' kernel routes from the logits, and we wrap the call of that kernel. Both are replaced on
the instance, because drafters have routers of the same classes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from xshare.engines.gates import Tally
from xshare.engines.serving.compiled import Compiled
from xshare.engines.serving.cpu_selector import ReferenceSelector
from xshare.engines.serving.hooks import Hook, MaskLogits, Reroute, Routed, rescales
from xshare.engines.serving.layer_buffers import Buffers, LayerGroup
from xshare.engines.serving.ranks import Ranks
from xshare.engines.serving.selector import Selector
from xshare.engines.serving.state import Attached
from xshare.engines.serving.step import Step
from xshare.engines.serving.step_sizes import Sizes
from xshare.engines.vllm.hooks import Route, make_hook, mode_of, one_launch_of
from xshare.engines.vllm.routers import first_replicas, has_replicas, replica_map
from xshare.engines.vllm.site import Site
from xshare.policy import Policy

log = logging.getLogger("vllm.xshare")


@dataclass(eq=False)
class Layer:
    site: Site
    selector: Selector
    hook: Hook
    buffers: Buffers
    read_map: Tensor | None = None  # vLLM's map of replicas, when it was last read
    read_version: int | None = None

    @property
    def mode(self) -> str:
        """How S reaches the engine now: `do_not_route` may have turned `route` into `logits`."""
        return MaskLogits.mode if self.hook.mode == Route.mode and self.selector.routes is None else self.hook.mode

    def attach(self) -> None:
        hook, runner = self.hook, self.site.runner
        if self.site.monolithic:
            experts = runner.routed_experts
            compute = experts.forward_monolithic

            def forward_monolithic(x: Tensor, router_logits: Tensor, input_ids: Tensor | None = None) -> Any:
                def native(logits: Tensor) -> Any:
                    return compute(x=x, router_logits=logits, input_ids=input_ids)

                return hook.compute(native, router_logits)

            experts.forward_monolithic = forward_monolithic
            return
        route = runner.router._compute_routing

        def compute_routing(
            hidden_states: Tensor, router_logits: Tensor, indices_type: Any, *, input_ids: Tensor | None = None
        ) -> Routed:
            def native(logits: Tensor) -> Routed:
                routed: Routed = route(hidden_states, logits, indices_type, input_ids=input_ids)
                return routed

            return hook.route(native, router_logits)

        runner.router._compute_routing = compute_routing

    def follow_replicas(self) -> None:
        """Read where an expert's first replica is, after the engine may have moved it."""
        placement = self.site.placement
        if placement is None or not has_replicas(self.site.runner):
            return
        replicas = replica_map(self.site.runner)
        version = None if replicas.is_inference() else replicas._version  # counts writes to the tensor
        if version is not None and self.read_map is replicas and self.read_version == version:
            return
        self.read_map, self.read_version = replicas, version
        devices = first_replicas(self.site.runner)
        placement.devices.copy_(devices)
        self.selector.move(devices)


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
    """See MakesLayers."""
    buffers = {place: layer_buffers for group in groups for place, layer_buffers in group.buffers().items()}
    pool: Any = None
    layers = []
    refused: dict[str | None, int] = {}  # layers that are not routed in one launch, by reason
    for place, site in enumerate(sites):
        mode, layer_policy = mode_of(site, policy, step.device), policy.for_layer(site.number)
        selector: Selector
        if step.control is not None:
            from xshare.engines.serving.gpu_selector import FusedSelector, Pool  # needs Triton

            launches = one_launch_of(site)
            pool, dtype = pool or Pool(), site.runner.moe_config.in_dtype
            if mode == MaskLogits.mode and compiled.one_launch:
                reason = "ranks choose together" if ranks else launches.why_not(site, step.device, dtype)
                mode = Route.mode if reason is None else mode
                refused[reason] = refused.get(reason, 0) + 1
            selector = FusedSelector(
                site,
                buffers[place],
                step,
                sizes,
                layer_policy,
                compiled=compiled,
                mask_logits=mode in (MaskLogits.mode, Route.mode),
                with_share=mode == MaskLogits.mode and rescales(site),  # other modes do not need it
                reroutes=mode == Reroute.mode,
                routes=dtype if mode == Route.mode else None,
                pool=pool,
                one_launch=launches,
                across=None if ranks is None else ranks.add_up,
            )
        else:
            selector = ReferenceSelector(site, buffers[place], step, tally, layer_policy, ranks)
        hook = make_hook(mode, site, selector, step.device)
        layers.append(Layer(site, selector, hook, buffers[place]))
    for reason, count in refused.items():
        if reason is not None:
            log.info("xshare: %d layers are routed by vLLM itself, not in the selection's launch: %s", count, reason)
    return layers


def compile_layers(layers: Sequence[Attached], dtype: torch.dtype) -> None:
    """Compile all selections. Layers that were to be routed in one launch are left to vLLM's routing if that launch
    does not compile for this GPU, or differs from vLLM's in a bit."""
    routing = [layer for layer in layers if layer.mode == Route.mode]
    if not routing:
        for layer in layers:
            layer.selector.compile(dtype)
        return
    from triton.errors import TritonError

    from xshare.engines.vllm.routing_check import find_difference

    try:
        for layer in layers:
            layer.selector.compile(dtype)
        differences = (find_difference(layer.selector, layer.selector.one_launch) for layer in routing)  # type: ignore[attr-defined, arg-type]
        difference = next((text for text in differences if text is not None), None)
    except TritonError as error:  # as where a kernel needs more shared memory than a GPU has
        why = "the launch does not compile here: " + str(error).strip().partition("\n")[0]
    else:
        if difference is None:
            log.info("xshare: %d layers are routed in one launch, to the bit as vLLM routes them", len(routing))
            return
        why = f"in one launch it came out otherwise with {difference}"
    log.warning("xshare: all layers are routed by vLLM itself: %s", why)
    for layer in routing:
        layer.selector.do_not_route()  # type: ignore[attr-defined]
    for layer in layers:
        layer.selector.compile(dtype)
