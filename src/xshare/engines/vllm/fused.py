"""Selection on a GPU: the fused kernel, made for every number of rows that a step may be padded to."""

from __future__ import annotations

import torch
from torch import Tensor

from xshare.engines.vllm.alike import Buffers
from xshare.engines.vllm.site import Site
from xshare.engines.vllm.sizes import Sizes
from xshare.engines.vllm.step import Step
from xshare.kernels.control import own_numbers
from xshare.kernels.launch import FusedSelection
from xshare.kernels.plan import Plan, Scratch
from xshare.kernels.words import Own
from xshare.policy import Policy

Pool = dict[Plan, Scratch]  # layers run one after another, and share what they can


class FusedSelector:
    def __init__(
        self,
        site: Site,
        buffers: Buffers,
        step: Step,
        sizes: Sizes,
        policy: Policy,
        *,
        never_within: int,
        thresholds: frozenset[str],
        mask_logits: bool,
        with_share: bool,
        reroutes: bool,
        pool: Pool,
    ) -> None:
        """`policy` is this layer's of the start. `never_within`: rows that are never acted on, because they natively
        load no more than the budget. `thresholds`: see FusedSelection."""
        assert step.control is not None
        self.control, self.sizes, self.router, self.num_experts = step.control, sizes, site.router, site.num_experts
        self.never_within, self.reroutes = never_within, reroutes
        self.own = torch.zeros(len(Own), dtype=torch.float64, device=step.device)  # this layer's own numbers
        drafts = sizes.num_spec_tokens
        each = 1 + drafts if drafts or policy.request_budget else 0
        self.selections: dict[int, FusedSelection] = {}  # by rows
        for rows in sizes.buckets:
            plan = Plan.of(site.num_experts, rows, each, step.device)
            if plan not in pool:
                pool[plan] = Scratch(plan, step.device)
            self.selections[rows] = FusedSelection(
                num_experts=site.num_experts,
                rows=rows,
                device=step.device,
                router=site.router,
                rows_per_request=each,
                placement=site.placement,
                mask_logits=mask_logits,
                with_share=with_share,
                seen=None if buffers.seen is None else buffers.seen[:rows],
                keep=buffers.keep,
                own=self.own,
                cost=step.costs,
                thresholds=thresholds,
                scratch=pool[plan],
            )
        self.set_policy(policy)

    def launch(self, logits: Tensor) -> FusedSelection | None:
        """Select for these logits; the selection, or None where it was not launched."""
        n = len(logits)
        if n > self.sizes.buckets[-1] or n <= self.never_within:
            return None
        selection = self.selections[next(rows for rows in self.selections if rows >= n)]
        selection.launch(logits, self.control)
        return selection

    def masked(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """In place."""
        selection = self.launch(logits)
        return logits, None if selection is None else selection.share[: len(logits), None]

    def masked_bias(self, logits: Tensor) -> Tensor:
        selection = self.launch(logits)
        own = self.router.correction_bias
        assert own is not None
        return own if selection is None else selection.masked_bias

    def rerouted(self, logits: Tensor, weights: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """In place."""
        selection = self.launch(logits)
        if selection is not None:
            selection.reroute(logits, weights, ids, self.control)
        return weights, ids

    def check(self, policy: Policy) -> None:
        for selection in self.selections.values():
            selection.check(policy)

    def set_policy(self, policy: Policy) -> None:
        """The rest of the policy is in the control, which all layers share."""
        self.own.copy_(own_numbers(policy))

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
