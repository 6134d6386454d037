"""Selection on a GPU: the fused kernel, compiled for every number of rows that a step may be padded to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from xshare.engines.serving.compiled import Compiled
from xshare.engines.serving.layer_buffers import Buffers
from xshare.engines.serving.site import Site
from xshare.engines.serving.step import Step
from xshare.engines.serving.step_sizes import Sizes
from xshare.kernels.control import layer_numbers
from xshare.kernels.control_words import LayerNumber, MessageWord
from xshare.kernels.launch import FusedSelection
from xshare.kernels.plan import Plan, Scratch
from xshare.kernels.routing_blocks import Blocks
from xshare.kernels.routing_tables import Tables
from xshare.policy import Policy


class OneLaunch(Protocol):
    """What an engine needs, where all of routing runs in the selection's launch."""

    def aligned(self, logits: Tensor) -> bool:
        """Whether the kernel can read these logits."""

    def make_tables(self, plan: Plan, site: Any, dtype: torch.dtype, device: torch.device) -> Tables | Blocks:
        """Memory for the routing of a layer."""

    def engine_tables(self, tables: Any, rows: int) -> Any:
        """The tables of a step of so many rows, in the form that the engine's own routing returns."""


class Pool:
    """Memory that layers share, because they run one after another."""

    def __init__(self) -> None:
        self._scratch: dict[Plan, Scratch] = {}
        self._tables: dict[tuple[Any, ...], Tables | Blocks] = {}
        self._messages: dict[int, Tensor] = {}  # by size

    def scratch(self, plan: Plan, device: torch.device) -> Scratch:
        if plan not in self._scratch:
            message = self.message(plan, device) if plan.in_halves else None
            self._scratch[plan] = Scratch(plan, device, message)
        return self._scratch[plan]

    def message(self, plan: Plan, device: torch.device) -> Tensor:
        """One message for all sizes of a step, so that it can be read without knowing the size."""
        size = plan.message_size
        if size not in self._messages:
            self._messages[size] = torch.zeros(size, dtype=torch.int64, device=device)
        return self._messages[size]

    def tables(
        self, one_launch: OneLaunch, plan: Plan, site: Site, dtype: torch.dtype, device: torch.device
    ) -> Tables | Blocks:
        key = one_launch, plan, site.num_experts, site.router.top_k, dtype
        if key not in self._tables:
            self._tables[key] = one_launch.make_tables(plan, site, dtype, device)
        return self._tables[key]


class FusedSelector:
    def __init__(
        self,
        site: Site,
        buffers: Buffers,
        step: Step,
        sizes: Sizes,
        policy: Policy,
        *,
        compiled: Compiled,
        mask_logits: bool,
        with_share: bool,
        reroutes: bool,
        routes: torch.dtype | None,
        pool: Pool,
        one_launch: OneLaunch | None = None,
        across: Callable[[Tensor], None] | None = None,
    ) -> None:
        """`policy`: this layer's first one. `across`: see FusedSelection. `routes`: logits of this type are routed in
        the same launch, for `one_launch`."""
        assert step.control is not None
        self.control, self.sizes, self.router, self.num_experts = step.control, sizes, site.router, site.num_experts
        self.never_within, self.reroutes = compiled.never_within, reroutes
        self.across = across
        self.own = torch.zeros(len(LayerNumber), dtype=torch.float64, device=step.device)  # this layer's own numbers
        rows_per_request = compiled.rows_per_request
        self.selections: dict[int, FusedSelection] = {}  # by rows
        for rows in sizes.buckets:
            routed = 0 if routes is None or one_launch is None else site.router.top_k
            plan = Plan.of(site.num_experts, rows, rows_per_request, step.device, across is not None, routed)
            tables = None
            if routes is not None and one_launch is not None:
                tables = pool.tables(one_launch, plan, site, routes, step.device)
            self.selections[rows] = FusedSelection(
                num_experts=site.num_experts,
                rows=rows,
                device=step.device,
                router=site.router,
                rows_per_request=rows_per_request,
                placement=site.placement,
                mask_logits=mask_logits,
                with_share=with_share,
                seen=None if buffers.seen is None else buffers.seen[:rows],
                keep=buffers.keep,
                own=self.own,
                cost=step.costs,
                thresholds=compiled.thresholds,
                protects=compiled.protects,
                scratch=pool.scratch(plan, step.device),
                routes=tables is not None,
                tables=tables,
                across=across,
            )
        self.routes, self.one_launch = routes, one_launch
        self.cannot_route: str | None = None  # the last logits that could not be routed, described
        self._ready: dict[int, Any] = {}  # by rows: the tables in the engine's form
        self.set_policy(policy)

    def launch(self, logits: Tensor, route: bool = False) -> FusedSelection | None:
        """Select for these logits; returns the selection, or None where it was not launched. A selection that routes is
        launched even if the gate is closed: it then routes natively, and faster than the engine."""
        n = len(logits)
        if self.across is not None and n > self.sizes.buckets[-1]:
            self.selections[1].only_listen()  # the other ranks wait for this rank's message
            return None
        if n > self.sizes.buckets[-1] or (n <= self.never_within and not route and self.across is None):
            return None
        selection = self.selections[next(rows for rows in self.selections if rows >= n)]
        selection.launch(logits, self.control, route)
        return selection

    @property
    def said(self) -> Tensor:
        """What all ranks said in the step that ran last, int64 [len(MessageWord)]."""
        scratch = self.selections[1].scratch
        assert scratch is not None
        return scratch.message[-len(MessageWord) :]

    def routed(self, logits: Tensor) -> Any:
        if self.one_launch is None or self.routes is None:
            return None  # masked instead
        if logits.dtype != self.routes or not self.one_launch.aligned(logits):
            strides = list(logits.stride())
            self.cannot_route = (
                f"logits {list(logits.shape)} of {logits.dtype} and strides {strides}, not aligned {self.routes}"
            )
            return None
        selection = self.launch(logits, route=True)
        if selection is None:
            return None
        n = len(logits)
        if n not in self._ready:
            assert selection.tables is not None
            self._ready[n] = self.one_launch.engine_tables(selection.tables, n)
        return self._ready[n]

    def do_not_route(self) -> None:
        """Leave routing to the engine, which gets masked logits."""
        self.routes = None
        for selection in self.selections.values():
            selection.tables = None

    def masked(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Masks the logits in place."""
        selection = self.launch(logits)
        return logits, None if selection is None else selection.share[: len(logits), None]

    def masked_bias(self, logits: Tensor) -> Tensor:
        selection = self.launch(logits)
        native = self.router.correction_bias
        assert native is not None
        return native if selection is None else selection.masked_bias

    def rerouted(self, logits: Tensor, weights: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Replaces weights and ids in place."""
        selection = self.launch(logits)
        if selection is not None:
            selection.reroute(logits, weights, ids, self.control)
        return weights, ids

    def check_policy(self, policy: Policy) -> None:
        for selection in self.selections.values():
            selection.check(policy)

    def set_policy(self, policy: Policy) -> None:
        """Sets this layer's own numbers. The rest of the policy is in the Control, which all layers share."""
        self.own.copy_(layer_numbers(policy))

    def move(self, devices: Tensor) -> None:
        for selection in self.selections.values():
            selection.devices.copy_(devices)

    def compile(self, dtype: torch.dtype) -> None:
        for rows, selection in self.selections.items():
            for kind in {dtype, torch.float32}:  # some engines compute a router's logits in float32
                logits = torch.zeros(rows, self.num_experts, dtype=kind, device=self.own.device)
                selection.launch(logits, self.control)
                if self.reroutes:
                    weights = torch.zeros(rows, self.router.top_k, device=logits.device)
                    selection.reroute(logits, weights, weights.int(), self.control)
