"""Replay: which experts a policy would have loaded on the batches of a trace, and what it would have lost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from xshare.batch import BatchLayout, Placement
from xshare.errors import PolicyError
from xshare.kernels import cpu
from xshare.methods import Native, Step, decide_routing
from xshare.policy import Policy
from xshare.protected_share import protected_requests
from xshare.router import ABSENT
from xshare.routing import (
    Report,
    check_policy,
    fit_layout,
    keep_protected,
    prepare_step,
    report,
    route_compiled,
    route_prepared,
)
from xshare.trace.batches import Batches
from xshare.trace.file import Trace

METRICS = ("active", "active_native", "mass", "mass_shared", "below_half", "smallest_kept", "top1_kept", "max_load")


@dataclass(frozen=True)
class Replayed:
    """One policy on all batches: a table [batches, layers] per metric."""

    policy: Policy
    protected: float  # share of the requests that are protected
    metrics: dict[str, NDArray[np.float64]]


def replay(
    trace: Trace,
    policies: Sequence[Policy],
    batches: Batches,
    placement: Placement | None = None,
    advance: Callable[[int], None] = lambda batches: None,
    chunk_elements: int = 4_000_000,  # scores in memory at once: a few hundred MB with everything derived from them
    protected: Sequence[float] = (0.0,),
) -> list[Replayed]:
    """Run every policy on the same batches, once for each share of `protected` requests. `advance` is called with the
    number of batches finished, for a progress bar."""
    for policy in policies:
        for layer_policy in policy.by_layer(trace.header.layers):
            check_policy(layer_policy, placement, trace.header.num_experts)
        if trace.header.score == "topk" and policy.warmup > (k := trace.header.top_k):
            raise PolicyError(
                f"warmup (k0) must be at most {k}, the experts a token this trace holds, not {policy.warmup}"
            )
    layers, N = len(trace.header.layers), trace.header.num_experts
    chunk = max(1, chunk_elements // (layers * batches.tokens.shape[1] * N))
    runs = [(policy, share) for policy in policies for share in protected]
    requests = {share: protected_requests(share, 1 + int(batches.requests.max())) for share in protected}
    reports: list[list[Report]] = [[] for _ in runs]
    with torch.inference_mode():
        for start in range(0, len(batches), chunk):
            part = Batches(batches.tokens[start : start + chunk], batches.requests[start : start + chunk])
            rows = {share: Rows(trace, part, placement, requests[share]) for share in protected}
            for run_reports, (policy, share) in zip(reports, runs, strict=True):
                run_reports.append(replay_policy(rows[share], policy))
            advance(len(part))
    return [Replayed(*run, _collect(run_reports)) for run, run_reports in zip(runs, reports, strict=True)]


class Rows:
    """The rows of some batches, [batches, layers, n, N], ready for any policy."""

    def __init__(
        self, trace: Trace, batches: Batches, placement: Placement | None, protected: Collection[int] = ()
    ) -> None:
        """`protected`: the numbers of the protected requests, the same in every batch."""
        self.trace = trace
        self.index = torch.from_numpy(batches.tokens).clamp(min=0)  # empty rows read token 0 and do not vote
        requests = torch.from_numpy(batches.requests).unsqueeze(1)  # [batches, 1, n]
        protected_rows = torch.isin(requests, torch.tensor(sorted(protected))) if protected else None
        layout = BatchLayout(requests, protected_rows)
        self.logits = None if trace.logits is None else trace.logits[self.index].transpose(1, 2)
        shape = (len(batches), len(trace.header.layers), self.index.shape[1], trace.header.num_experts)
        self.layout, self.placement = fit_layout(torch.empty(()).expand(shape), layout, placement)

    @cached_property
    def step(self) -> Step:
        """The step that all policies of the torch reference share."""
        if self.logits is not None:
            return prepare_step(self.logits, self.trace.router(), self.layout, self.placement)
        trace = self.trace
        assert trace.experts is not None
        assert trace.weights is not None
        ids = trace.experts[self.index].transpose(1, 2).long()  # [batches, layers, n, k]
        native = Native(ids, trace.weights[self.index].transpose(1, 2).double())
        score = native.scatter(trace.header.num_experts)
        order = torch.arange(trace.header.top_k, 0, -1, dtype=torch.float64)  # a trace lists the best expert first
        choice = torch.full_like(score, ABSENT).scatter_(-1, ids, order.expand(ids.shape))
        return Step(score, choice, torch.ones(score.shape[:-1], dtype=torch.bool), self.layout, self.placement, native)


def replay_policy(rows: Rows, policy: Policy) -> Report:
    """The report of a policy that may differ by layer."""
    layer_policies = policy.by_layer(rows.trace.header.layers)
    reports = {layer_policy: replay_uniform(rows, layer_policy) for layer_policy in dict.fromkeys(layer_policies)}
    if len(reports) == 1:
        return reports[layer_policies[0]]

    def pick(name: str) -> torch.Tensor:  # [batches, layers, ...]
        values = [getattr(reports[layer_policy], name)[:, layer] for layer, layer_policy in enumerate(layer_policies)]
        return torch.stack(values, dim=1)

    return Report(**{field.name: pick(field.name) for field in fields(Report)})


def replay_uniform(rows: Rows, policy: Policy) -> Report:
    """The report of one policy for all layers. If the trace holds only chosen experts, a row routes to those of them
    that are in S."""
    router = rows.trace.router()
    if rows.logits is not None and cpu.serves(rows.logits, policy):
        return route_compiled(rows.logits, cpu.Steps(router, policy, rows.placement), rows.layout)
    step = rows.step
    if rows.logits is not None:
        return route_prepared(step, router, policy)
    selection = decide_routing(step, policy)
    keep_protected(step, selection)
    return report(step, selection, step.union(step.native_mask & selection.allowed))


def _collect(reports: list[Report]) -> dict[str, NDArray[np.float64]]:
    tables = {}
    for metric in METRICS:
        values = [getattr(report, metric) for report in reports]
        if metric.startswith("active"):
            values = [mask.sum(-1) for mask in values]  # [batches, layers, N] -> counts
        tables[metric] = torch.cat([value.double() for value in values]).numpy()
    return tables
