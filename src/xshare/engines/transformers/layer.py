"""One MoE layer: the hook behind its router, which has routed natively by then."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from xshare.engines.transformers.routers import Router
from xshare.engines.transformers.state import State
from xshare.routing import Routing, route

FIGURES = ("experts_native", "experts_selected", "experts_active", "mass_kept", "top1_kept", "max_load", "excluded")
Triple = tuple[Tensor, Tensor, Tensor]


class Layer:
    def __init__(self, state: State, router: Router, budget: int | None = None) -> None:
        self.state, self.router = state, router
        own = {} if budget is None else {"batch_budget": budget}
        self.policy = state.policy.model_copy(update=own)
        self.clear()

    def clear(self) -> None:
        self.steps = 0
        self.latest: Tensor | None = None  # float64 [figures, steps] of the last pass, zero where it was left alone
        self.sums: Tensor | None = None  # float64 [figures], on the layer's device

    @torch.compiler.disable
    def after(self, module: Any, args: Any, output: Triple) -> Triple | None:
        """Logits [n, N], weights and ids [n, k] as the model has them -> inside S. None leaves the model's own."""
        state = self.state
        state.asked = True
        if not state.gate:
            return None
        logits, weights, ids = output
        if len(logits) != state.rows:
            state.mismatch(len(logits))
            return None
        rows = self._by_step(logits)  # [steps, n, N]
        routing = route(rows.detach(), self.router.spec(), self.policy, layout=state.layout, placement=state.placement)
        self._count(routing)
        own_weights, own_ids = settle(routing, self._by_step(weights), self._by_step(ids))
        return logits, self._by_row(own_weights), self._by_row(own_ids)

    def _by_step(self, rows: Tensor) -> Tensor:
        """[rows, x] -> [steps, n, x]: of each sequence the same positions, one or more; a sequence's are neighbours."""
        steps, width = self.state.steps, self.state.width
        if steps == 1:
            return rows.unsqueeze(0)
        return rows.view(-1, steps, width, rows.shape[-1]).transpose(0, 1).flatten(1, 2)

    def _by_row(self, rows: Tensor) -> Tensor:
        if self.state.steps == 1:
            return rows.squeeze(0)
        return rows.view(len(rows), -1, self.state.width, rows.shape[-1]).transpose(0, 1).flatten(0, 2)

    def _count(self, routing: Routing) -> None:
        counts = (routing.active_native.sum(-1), routing.selected.sum(-1), routing.active.sum(-1))
        shares = (routing.mass, routing.top1_kept, routing.max_load, routing.excluded)
        figures = torch.stack([figure.double() for figure in (*counts, *shares)])  # [figures, steps]
        if self.state.open is not None:
            figures = figures * self.state.open.to(figures.device)
        self.latest = figures
        # Not in place: the sums of an inference_mode() may be added to outside it, but not changed there.
        sums = figures.sum(-1)
        self.sums = sums if self.sums is None else self.sums.to(sums.device) + sums
        self.steps += self.state.counted

    def means(self) -> list[float]:
        """The figures, each a mean over the steps that were acted on: this waits for the device."""
        if self.sums is None:
            return [0.0] * len(FIGURES)
        means: list[float] = (self.sums / max(1, self.steps)).tolist()
        return means


def settle(routing: Routing, weights: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and ids in the model's own types; a row that keeps its native experts keeps their bits.

    [..., n, k] each. Ours and the model's weights differ by rounding, as float64 does from the model's type. So with
    S = E, where the model may also break ties in its own way, all is as it was.
    """
    inside = routing.selected.unsqueeze(-2).expand(*ids.shape[:-1], -1).gather(-1, ids.long()).all(-1)
    ours, theirs = (w.double().sort(dim=-1).values for w in (routing.weights, weights))
    rounding = max(1e-5, 4 * torch.finfo(weights.dtype).eps)
    same = inside & torch.isclose(ours, theirs, rtol=rounding, atol=0).all(-1)
    keep = same.unsqueeze(-1)
    return torch.where(keep, weights, routing.weights.to(weights.dtype)), torch.where(
        keep, ids, routing.ids.to(ids.dtype)
    )
