"""One MoE layer of the engine: the hook in front of its router, on the path that the layer takes.

vLLM forks in MoERunner._apply_quant_method. On the *router* path router.select_experts is called, and we replace
`_compute_routing` of that one router: its ids are logical, before replicas are chosen and before anyone records them.
On the *monolithic* path the experts' kernel routes by itself from the logits, and we go in front of it. Both on the
instance: drafters have routers of the same classes.

How S reaches the engine's own routing rule, which does the refinement:
  logits   masked logits: softmax routers, and sigmoid ones without a bias
  bias     a masked correction bias: routers that rank by score + bias
  reroute  the engine's ids and weights replaced by ours: groups, which the engine would judge by experts outside S too
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from xshare.batch import Placement
from xshare.engines.vllm import ops
from xshare.engines.vllm.routers import first_replicas, has_replicas
from xshare.engines.vllm.settings import SettingsError
from xshare.engines.vllm.weights import expert_bytes
from xshare.policy import Policy
from xshare.router import RouterSpec
from xshare.routing import Routing, route

if TYPE_CHECKING:
    from xshare.engines.vllm.state import State


class Layer:
    def __init__(
        self, state: State, name: str, runner: Any, router: RouterSpec, num_experts: int, placement: Placement | None
    ) -> None:
        self.state, self.name, self.runner, self.router, self.num_experts = state, name, runner, router, num_experts
        self.placement = placement
        self.key = name  # by which the operators find it
        self.monolithic = bool(runner.routed_experts.quant_method.is_monolithic)
        self.keep = torch.ones(num_experts, dtype=torch.bool, device=state.device)  # S of the last step
        self.budget: int | None = None  # this layer's own m, in place of the policy's
        self.own_budget = torch.full((1,), -1, dtype=torch.int32, device=state.device)  # the same for the kernel
        self.seen: Tensor | None = None  # [max_rows, N], the logits of a sampled step; made by metrics
        self.selections: dict[int, Any] = {}  # rows -> kernels.launch.FusedSelection, on a GPU

    @cached_property
    def expert_bytes(self) -> int | None:
        return expert_bytes(self.runner)

    @property
    def path(self) -> str:
        return "monolithic" if self.monolithic else "router"

    @property
    def mode(self) -> str:
        if self.router.correction_bias is None and self.state.policy.method == "xshare":
            return "logits"
        on_gpu = self.state.device.type == "cuda"
        return "bias" if self.monolithic or (on_gpu and self.router.n_group == 1) else "reroute"

    @property
    def _rescale(self) -> bool:
        """Whether weights are plain softmax scores, which masking the others' logits inflates."""
        return self.mode == "logits" and self.router.scoring == "softmax" and not self.router.renormalize

    def unservable(self) -> str | None:
        """Why this layer cannot be served on its path, or None."""
        if self.monolithic and self.router.n_group > 1:
            return "its kernel judges groups by experts outside the set too; choose a modular --moe-backend"
        if self.monolithic and self.state.policy.method != "xshare":
            return f"method {self.state.policy.method!r} cannot reach into its kernel; choose a modular --moe-backend"
        if self.state.device.type == "cuda":
            from xshare.kernels.launch import unsupported_shape

            return unsupported_shape(self.num_experts, 1, self.router.n_group)
        return None

    @property
    def policy(self) -> Policy:
        shared = self.state.policy
        return shared if self.budget is None else shared.model_copy(update={"batch_budget": self.budget})

    def set_budget(self, budget: int | None) -> None:
        self.budget = budget
        self.own_budget.fill_(-1 if budget is None else min(budget, self.num_experts))

    def check(self, policy: Policy) -> None:
        """Refuse a policy that the captured kernels cannot follow."""
        for selection in self.selections.values():
            selection.check(policy)

    # What is called in the forward pass

    def attach(self) -> None:
        if self.state.device.type == "cuda":
            self._make_selections()
        else:
            self.key = ops.enroll(self)
        if self.monolithic:
            self.runner.routed_experts.forward_monolithic = self._around_experts()
        else:
            self.runner.router._compute_routing = self._around_router()

    def _around_router(self) -> Any:
        native = self.runner.router._compute_routing
        router, mode, name = self.runner.router, self.mode, self.key
        rescale = self._rescale

        def on_cpu(
            hidden_states: Tensor, router_logits: Tensor, indices_type: Any, *, input_ids: Tensor | None = None
        ) -> tuple[Tensor, Tensor]:
            if mode == "reroute":
                weights, ids = native(hidden_states, router_logits, indices_type, input_ids=input_ids)
                weights, ids = torch.ops.xshare.reroute(router_logits, weights, ids, name)
                return weights, ids
            masked, share = torch.ops.xshare.mask_logits(router_logits, name)
            weights, ids = native(hidden_states, masked, indices_type, input_ids=input_ids)
            return (weights * share if rescale else weights), ids

        def on_gpu(
            hidden_states: Tensor, router_logits: Tensor, indices_type: Any, *, input_ids: Tensor | None = None
        ) -> tuple[Tensor, Tensor]:
            selection = self._launch(router_logits)
            if selection is not None and mode == "bias":
                router.e_score_correction_bias = selection.masked_bias
            try:
                weights, ids = native(hidden_states, router_logits, indices_type, input_ids=input_ids)
            finally:
                if mode == "bias":
                    router.e_score_correction_bias = self.router.correction_bias
            if selection is not None and rescale:
                weights = weights * selection.mass[: len(weights), None]  # a masked softmax inflates what is left
            if selection is not None and mode == "reroute":
                rule = (self.router.renormalize, self.router.routed_scaling_factor)
                selection.reroute(router_logits, weights, ids, self.state.control, *rule)
            return weights, ids

        return on_gpu if self.state.device.type == "cuda" else on_cpu

    def _around_experts(self) -> Any:
        experts = self.runner.routed_experts
        native = experts.forward_monolithic
        mode, name = self.mode, self.key
        rescale = self._rescale
        own_bias = self.router.correction_bias
        masked_bias = None if own_bias is None else own_bias.clone()
        if own_bias is not None:
            # A plain attribute from here on, which may hold the masked one; the gate keeps its own.
            experts._parameters.pop("e_score_correction_bias", None)
            experts.__dict__["e_score_correction_bias"] = masked_bias

        def on_cpu(x: Tensor, router_logits: Tensor, input_ids: Tensor | None = None) -> Any:
            if mode == "bias":
                torch.ops.xshare.mask_bias(router_logits, masked_bias, name)
                return native(x=x, router_logits=router_logits, input_ids=input_ids)
            masked, share = torch.ops.xshare.mask_logits(router_logits, name)
            out = native(x=x, router_logits=masked, input_ids=input_ids)
            return out * share.to(out.dtype) if rescale else out

        def on_gpu(x: Tensor, router_logits: Tensor, input_ids: Tensor | None = None) -> Any:
            selection = self._launch(router_logits)
            if mode == "bias":
                experts.__dict__["e_score_correction_bias"] = own_bias if selection is None else selection.masked_bias
            out = native(x=x, router_logits=router_logits, input_ids=input_ids)
            if selection is None or not rescale:
                return out
            if not isinstance(out, Tensor):
                raise SettingsError(f"{self.name} leaves its output unfinished, which xshare cannot rescale: skip it")
            return out * selection.mass[: len(out), None].to(out.dtype)

        return on_gpu if self.state.device.type == "cuda" else on_cpu

    # On a CPU: the reference

    def decide(self, logits: Tensor) -> Routing | None:
        """S and the routing inside it, or None where this step is left alone."""
        state = self.state
        if not state.gate:
            return None
        if len(logits) < state.rows:
            state.mismatch(len(logits))
            return None
        layout = state.layout(len(logits))
        routing = route(logits, self.router, self.policy, layout=layout, placement=self.placement)
        self.keep.copy_(routing.selected)
        if state.sampling and self.seen is not None:
            self.seen[: len(logits)] = logits
        return routing

    # On a GPU: the fused kernel

    def _make_selections(self) -> None:
        from xshare.kernels.launch import FusedSelection

        state = self.state
        each = 1 + state.num_spec_tokens if state.num_spec_tokens or state.policy.request_budget else 0
        first = state.layers[0]
        alike = first is not self and first.num_experts == self.num_experts  # scratch memory of the same size
        for rows in state.buckets:
            selection = FusedSelection(
                self.num_experts,
                self.router.top_k,
                rows,
                state.device,
                self.router.scoring,
                self.router.correction_bias,
                self.router.n_group,
                self.router.topk_group,
                rows_per_request=each,
                placement=self.placement,
                fill=state.policy.fill,
                mask_logits=self.mode == "logits",
                with_mass=self._rescale,  # nobody else needs it
                seen=None if self.seen is None else self.seen[:rows],
                budget=self.own_budget,
                score=state.policy.score,
                renormalize=self.router.renormalize,
                like=first.selections.get(rows) if alike else None,
            )
            selection.keep = self.keep
            self.selections[rows] = selection

    def compile(self, dtype: torch.dtype) -> None:
        """Compile now: a captured graph cannot wait for a compiler. The gate is closed."""
        for rows, selection in self.selections.items():
            for kind in {dtype, torch.float32}:  # some engines compute a router's logits in float32
                logits = torch.zeros(rows, self.num_experts, dtype=kind, device=self.state.device)
                selection.launch(logits, self.state.control)
                if self.mode == "reroute":
                    weights = torch.zeros(rows, self.router.top_k, device=logits.device)
                    selection.reroute(logits, weights, weights.int(), self.state.control)

    def _launch(self, logits: Tensor) -> Any:
        """Select for these logits; the selection, or None where it was not launched."""
        n = len(logits)
        if self.state.never_acts(n):
            return None
        rows = next(rows for rows in self.selections if rows >= n)
        selection = self.selections[rows]
        selection.launch(logits, self.state.control)
        return selection

    def follow_replicas(self) -> None:
        """Read where an expert's first replica is, after the engine may have moved it."""
        if self.placement is None or not has_replicas(self.runner):
            return
        devices = first_replicas(self.runner)
        self.placement.devices.copy_(devices)
        for selection in self.selections.values():
            selection.devices.copy_(devices)
