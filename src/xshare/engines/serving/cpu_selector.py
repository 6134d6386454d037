"""Selection on a CPU: compiled or the reference, called through operators that torch.compile does not look into."""

from __future__ import annotations

import torch
from torch import Tensor

from xshare.engines.gates import Tally
from xshare.engines.serving import cpu_operators as ops
from xshare.engines.serving.layer_buffers import Buffers
from xshare.engines.serving.ranks import Ranks
from xshare.engines.serving.site import Site
from xshare.engines.serving.step import Step
from xshare.joint_selection import choose, size_of_votes, vote
from xshare.kernels import cpu
from xshare.policy import Policy
from xshare.routing import Routing, route, route_compiled


class ReferenceSelector:
    routes: torch.dtype | None = None
    cannot_route: str | None = None

    def __init__(
        self, site: Site, buffers: Buffers, step: Step, tally: Tally, policy: Policy, ranks: Ranks | None = None
    ) -> None:
        self.name, self.router, self.placement = site.name, site.router, site.placement
        self.buffers, self.step, self.tally = buffers, step, tally
        self.policy, self.ranks = policy, ranks
        self.steps: dict[int | None, cpu.Steps] = {}  # by cost table: built at the first step that uses it
        self.key = ops.register(self, site.name)
        bias = site.router.correction_bias
        self.bias = None if bias is None else bias.clone()  # the masked copy

    def decide(self, logits: Tensor) -> Routing | None:
        """S and the routing inside it, or None where this step is left alone."""
        step = self.step
        fits = step.gate and len(logits) >= step.rows
        if step.gate and not fits:
            self.tally.mismatch(len(logits), step.rows)
        if self.ranks is not None:
            return self._decide_together(logits, self.ranks, fits)
        if not fits:
            return None
        layout = step.layout(len(logits))
        if cpu.serves(logits, self.policy):
            if step.table not in self.steps:
                self.steps[step.table] = cpu.Steps(self.router, self.policy, self.placement, step.cost)
            routing = route_compiled(logits, self.steps[step.table], layout)
        else:
            routing = route(logits, self.router, self.policy, layout=layout, placement=self.placement, cost=step.cost)
        self._record(logits, routing)
        return routing

    def _decide_together(self, logits: Tensor, ranks: Ranks, votes: bool) -> Routing | None:
        """As `decide`, with the votes of all ranks. Every rank must send its message at every layer: the others wait
        for it."""
        ballot, step = None, self.step
        if votes:
            layout = step.layout(len(logits))
            ballot = vote(logits, self.router, self.policy, layout=layout, placement=self.placement)
        counts = ranks.exchange(None if ballot is None else ballot.counts, size_of_votes(logits.shape[-1]))
        if ballot is None or counts is None:
            return None
        S = choose(counts, self.router, self.policy, self.placement, step.cost)
        routing = ballot.routed(S, torch.promote_types(logits.dtype, torch.float32))
        self._record(logits, routing)
        return None if step.only_votes else routing

    def _record(self, logits: Tensor, routing: Routing) -> None:
        """Leave S, and the logits of a sampled step, in the buffers for the counters."""
        self.buffers.keep.copy_(routing.selected)
        if self.step.sampling and self.buffers.seen is not None:
            self.buffers.seen[: len(logits)] = logits

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

    def check_policy(self, policy: Policy) -> None:
        """It can follow any policy."""

    def set_policy(self, policy: Policy) -> None:
        self.policy, self.steps = policy, {}

    def move(self, devices: Tensor) -> None:
        """Nothing to do: it reads the placement, which the caller has changed."""

    def compile(self, dtype: torch.dtype) -> None:
        """Nothing to compile."""
