"""Selection on a CPU: compiled or the reference, called through operators that torch.compile does not look into."""

from __future__ import annotations

import torch
from torch import Tensor

from xshare.engines.gates import Tally
from xshare.engines.serving import ops
from xshare.engines.serving.alike import Buffers
from xshare.engines.serving.site import Site
from xshare.engines.serving.step import Step
from xshare.kernels import cpu
from xshare.policy import Policy
from xshare.routing import Routing, route, routed


class ReferenceSelector:
    routes: torch.dtype | None = None

    def __init__(self, site: Site, buffers: Buffers, step: Step, tally: Tally, policy: Policy) -> None:
        self.name, self.router, self.placement = site.name, site.router, site.placement
        self.buffers, self.step, self.tally = buffers, step, tally
        self.policy = policy
        self.steps: dict[int | None, cpu.Steps] = {}  # by cost table: made ready by the first step that takes it
        self.key = ops.enroll(self, site.name)
        bias = site.router.correction_bias
        self.bias = None if bias is None else bias.clone()  # where the masked one is left

    def decide(self, logits: Tensor) -> Routing | None:
        """S and the routing inside it, or None where this step is left alone."""
        step = self.step
        if not step.gate:
            return None
        if len(logits) < step.rows:
            self.tally.mismatch(len(logits), step.rows)
            return None
        layout = step.layout(len(logits))
        if cpu.serves(logits, self.policy):
            if step.table not in self.steps:
                self.steps[step.table] = cpu.Steps(self.router, self.policy, self.placement, step.cost)
            routing = routed(logits, self.steps[step.table], layout)
        else:
            routing = route(logits, self.router, self.policy, layout=layout, placement=self.placement, cost=step.cost)
        self.buffers.keep.copy_(routing.selected)
        if step.sampling and self.buffers.seen is not None:
            self.buffers.seen[: len(logits)] = logits
        return routing

    def masked(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        masked, share = torch.ops.xshare.mask_logits(logits, self.key)
        return masked, share

    def routed(self, logits: Tensor) -> None:
        return None

    def masked_bias(self, logits: Tensor) -> Tensor:
        assert self.bias is not None
        torch.ops.xshare.mask_bias(logits, self.bias, self.key)
        return self.bias

    def rerouted(self, logits: Tensor, weights: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        weights, ids = torch.ops.xshare.reroute(logits, weights, ids, self.key)
        return weights, ids

    def check(self, policy: Policy) -> None:
        """It follows any."""

    def set_policy(self, policy: Policy) -> None:
        self.policy, self.steps = policy, {}

    def move(self, devices: Tensor) -> None:
        """The placement itself was changed."""

    def compile(self, dtype: torch.dtype) -> None:
        """Nothing to compile."""
