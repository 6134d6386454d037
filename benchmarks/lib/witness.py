"""The reference beside an engine's steps, for vllm_check.py."""

from __future__ import annotations

from typing import Any

from lib.recorded_routing import RecordedRouting
from lib.recorded_rows import RecordingHook


class Witness:
    """Compares every layer's S with the reference, from the logits that were left aside, at every decode step."""

    def __init__(self, state: Any) -> None:
        self.state, self.compared, self.differ, self.sizes = state, 0, 0, [[0.0]][:0]
        self.routed = self.misrouted = 0  # layers of steps whose rows were compared, and those that differ
        self.padded = 0  # of those compared: with rows that only pad
        self.native = state.samples.settle
        state.samples.settle = self.settle

    def settle(self) -> None:
        waiting = self.state.samples._waiting
        if waiting is not None:
            import torch

            import xshare

            layout = self.state.now.layout(waiting).to(torch.device("cpu"))
            for layer in self.state.layers:
                logits, policy = layer.buffers.seen[:waiting].cpu(), self.state.policy.for_layer(layer.site.number)
                routing = xshare.route(logits, router_on_cpu(layer.site.router), policy, layout=layout)
                self.compared += 1
                self.differ += int(not bool((routing.selected == layer.buffers.keep.cpu()).all()))
                if isinstance(layer.hook, RecordingHook) and layer.site.path == "router":
                    self.routed += 1
                    self.misrouted += int(not layer.hook.routed_as(logits, routing))
                routed = getattr(layer.selector, "routed", None)
                if isinstance(routed, RecordedRouting) and layer.selector.routes is not None:
                    same, rows = routed.as_vllm(layer.buffers.keep)
                    self.routed += 1
                    self.misrouted += int(not same)
                    self.padded += int(rows > waiting)
            self.sizes.append([float(layer.buffers.keep.sum()) for layer in self.state.layers])
        self.native()

    def take(self) -> tuple[int, int, list[list[float]]]:
        self.settle()
        counts = self.compared, self.differ, self.sizes
        self.compared, self.differ, self.sizes = 0, 0, []
        return counts


def router_on_cpu(router: Any) -> Any:
    bias = router.correction_bias
    return router if bias is None else router.with_bias(bias.cpu())
