"""One MoE layer: the hook that runs after its router has routed natively."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xshare.algorithms import load
from xshare.batch import BatchLayout
from xshare.engines.counters import FIGURES
from xshare.engines.transformers.cost_tables import route_by_table
from xshare.engines.transformers.routers import Router
from xshare.engines.transformers.state import State
from xshare.kernels import cpu
from xshare.kernels.cpu.call import rounding
from xshare.policy import Policy
from xshare.routing import Routing, fit_layout, prepare_step, route, used_experts

Triple = tuple[Tensor, Tensor, Tensor]


class Layer:
    def __init__(self, state: State, router: Router, policy: Policy) -> None:
        """`policy`: this layer's."""
        self.state, self.router = state, router
        self.set_policy(policy)
        self.clear()

    def set_policy(self, policy: Policy) -> None:
        self.policy, self.prunes = policy, policy.method != "native"
        # On a CPU, by cost table: the correction bias and the compiled steps that were built for it.
        self.steps_for: dict[int | None, tuple[Tensor | None, cpu.Steps]] = {}

    def clear(self) -> None:
        self.steps = 0
        self.latest: Tensor | NDArray[Any] | None = (
            None  # [figures, steps] of the last pass, 0 for steps that were left alone
        )
        self.figures = np.zeros((len(FIGURES), 1))  # of a single step: compiled code writes them here
        self.sums: Tensor | None = None  # float64 [figures], on the layer's device
        self.host_sums = np.zeros(len(FIGURES))  # the same, of steps that compiled code routed

    @torch.compiler.disable
    def after(self, module: Any, args: Any, output: Triple) -> Triple | None:
        """The router's output, logits [n, N], weights and ids [n, k], restricted to S. None: it stays as it is."""
        state = self.state
        state.router_called = True
        if not state.gate:
            return None
        logits, weights, ids = output
        if len(logits) != state.rows:
            state.tally.mismatch(len(logits), state.rows)
            return None
        places = state.places
        compiled = cpu.serves(logits, self.policy)
        # A plain decode step on a CPU is one call of compiled code.
        if compiled and self.prunes and places.rows is None and state.open is None:
            (share,) = state.shares
            settled = self._ready(share.table).route_single(
                logits, weights, ids, state.layout, self.figures, self.host_sums
            )
            if settled is not None:
                self.latest = self.figures
                self.steps += state.counted
                return logits, *settled
        rows = places.by_step(logits).detach()  # [steps, n, N]
        if compiled:
            routed = route_by_table(state.shares, rows, self._compiled)
            self._add_array(routed.figures)
            if not self.prunes:
                return None
            ready = self._ready(state.shares[0].table)
            new_weights, new_ids = ready.settle(routed, places.by_step(weights), places.by_step(ids))
            return logits, places.by_row(new_weights), places.by_row(new_ids)
        if not self.prunes:
            self._count_native(rows)
            return None
        routing = route_by_table(state.shares, rows, self._routing)
        counts = (routing.active_native.sum(-1), routing.selected.sum(-1), routing.active.sum(-1))
        kept = (routing.mass, routing.below_half, routing.smallest_kept, routing.top1_kept)
        self._count(*counts, *kept, routing.max_load, routing.excluded, routing.mass_shared)
        new_weights, new_ids = settle(routing, places.by_step(weights), places.by_step(ids))
        return logits, places.by_row(new_weights), places.by_row(new_ids)

    def _ready(self, table: int | None) -> cpu.Steps:
        """The compiled steps. They are rebuilt after the model was moved, which replaces the correction bias."""
        bias = self.router.bias
        if table not in self.steps_for or self.steps_for[table][0] is not bias:
            steps = cpu.Steps(self.router.spec(), self.policy, self.state.placement, self._cost(table))
            self.steps_for[table] = bias, steps
        return self.steps_for[table][1]

    def _cost(self, table: int | None) -> Tensor | None:
        return None if table is None else self.state.costs[table]

    def _compiled(self, table: int | None, rows: Tensor, layout: BatchLayout) -> cpu.Routed:
        return self._ready(table)(rows, layout)

    def _routing(self, table: int | None, rows: Tensor, layout: BatchLayout) -> Routing:
        placement, cost = self.state.placement, self._cost(table)
        return route(rows, self.router.spec(), self.policy, layout=layout, placement=placement, cost=cost)

    def _count_native(self, rows: Tensor) -> None:
        """Count what `route` would report for native routing, without routing again."""
        layout, placement = fit_layout(rows, self.state.layout, self.state.placement)
        step = prepare_step(rows, self.router.spec(), layout, placement)
        assert step.native is not None
        active = used_experts(step.native.ids, step.voting, step.num_experts)
        experts, all_kept = active.sum(-1), step.score.new_ones(len(rows))
        max_load = load(active, placement.devices, placement.num_devices).amax(-1)
        excluded = (layout.voting & ~step.usable).sum(-1)
        kept = (all_kept, 1 - all_kept, all_kept, all_kept)
        self._count(experts, experts, experts, *kept, max_load, excluded, all_kept)

    def _count(self, *figures: Tensor) -> None:
        self._add(torch.stack(figures).double())

    def _add(self, figures: Tensor) -> None:
        """Add figures, float64 [figures, steps]."""
        if self.state.open is not None:
            figures = figures * self.state.open.to(figures.device)
        self.latest = figures
        # Not in place: outside of inference_mode(), a tensor that was made inside must not be changed.
        sums = figures.sum(-1)
        self.sums = sums if self.sums is None else self.sums.to(sums.device) + sums
        self.steps += self.state.counted

    def _add_array(self, figures: NDArray[Any]) -> None:
        """As `_add`, without torch, whose operations take longer than all of selection."""
        if self.state.open is not None:
            figures = figures * self.state.open.numpy()
        self.latest = figures
        self.host_sums += figures.sum(-1)
        self.steps += self.state.counted

    def means(self) -> list[float]:
        """The mean of each figure over the steps that were acted on. This waits for the device."""
        sums = self.host_sums + (0.0 if self.sums is None else self.sums.cpu().numpy())
        means: list[float] = (sums / max(1, self.steps)).tolist()
        return means


def settle(routing: Routing, weights: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and ids [..., n, k] in the model's types. A row that keeps its native experts keeps the model's bits.

    Our weights and the model's differ by rounding, because ours are computed in float64. So with S = E nothing changes,
    even where the model breaks ties differently.
    """
    inside = routing.selected.unsqueeze(-2).expand(*ids.shape[:-1], -1).gather(-1, ids.long()).all(-1)
    ours, theirs = (w.double().sort(dim=-1).values for w in (routing.weights, weights))
    same = inside & ((ours - theirs).abs() <= rounding(weights.dtype) * theirs).all(
        -1
    )  # isclose is slower, and they are positive
    keep = same.unsqueeze(-1)
    return torch.where(keep, weights, routing.weights.to(weights.dtype)), torch.where(
        keep, ids, routing.ids.to(ids.dtype)
    )
