"""Replay over data-parallel ranks: what a deployment loads if all ranks share one set, and if each has its own.

The requests of a batch go to the ranks in turn. The experts are placed on the devices, and a device loads those of its
experts that the rows of any rank use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xshare.algorithms import load
from xshare.batch import Placement
from xshare.errors import XShareError
from xshare.kernels import cpu
from xshare.methods import Selection, decide_routing
from xshare.policy import Policy
from xshare.routing import Report, report, route_compiled, route_prepared
from xshare.trace.batches import Batches
from xshare.trace.file import Trace
from xshare.trace.replay import Rows


@dataclass(frozen=True)
class Deployed:
    """One policy: means over all batches and layers."""

    policy: Policy
    shared: bool  # whether all ranks have one set
    active: float  # experts that the rows of all ranks load
    active_rank: float  # experts that the rows of one rank load, mean over ranks
    max_load: float  # experts that the fullest device loads
    mass: float  # share of the native gating weight that is kept


def replay_ranks(
    trace: Trace,
    policies: Sequence[Policy],
    batches: Batches,
    placement: Placement,
    ranks: int,
    advance: Callable[[int], None] = lambda batches: None,
    chunk_elements: int = 4_000_000,
) -> list[Deployed]:
    """Run every policy twice: with one set for all ranks, and with a set per rank."""
    if ranks > int(batches.requests.max()) + 1:
        raise XShareError(f"ranks must be at most {int(batches.requests.max()) + 1}, the requests of a batch")
    chunk = max(1, chunk_elements // (len(trace.header.layers) * batches.tokens.shape[1] * trace.header.num_experts))
    figures: dict[tuple[Policy, bool], list[Tensor]] = {
        (policy, shared): [] for policy in policies for shared in (True, False)
    }
    with torch.inference_mode():
        for start in range(0, len(batches), chunk):
            part = Batches(batches.tokens[start : start + chunk], batches.requests[start : start + chunk])
            all_rows = Rows(trace, part, placement)
            rank_rows = [Rows(trace, rank_batches(part, rank, ranks), placement) for rank in range(ranks)]
            for policy in policies:
                S = selected_set(all_rows, policy)
                figures[policy, True].append(deployment_figures(rank_rows, [S] * ranks))
                sets = [selected_set(rows, policy) for rows in rank_rows]
                figures[policy, False].append(deployment_figures(rank_rows, sets))
            advance(len(part))
    return [Deployed(*key, *torch.cat(parts).mean(0).tolist()) for key, parts in figures.items()]


def rank_batches(batches: Batches, rank: int, ranks: int) -> Batches:
    """The batches with the requests of one rank."""
    on_rank = (batches.requests >= 0) & (batches.requests % ranks == rank)
    first = np.argsort(~on_rank, axis=1, kind="stable")[:, : max(1, int(on_rank.sum(1).max()))]

    def rank_columns(values: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.take_along_axis(np.where(on_rank, values, -1), first, axis=1)

    return Batches(rank_columns(batches.tokens), rank_columns(batches.requests))


def selected_set(rows: Rows, policy: Policy) -> Tensor:
    """S under a policy that may differ by layer, bool [batches, layers, N]."""
    layer_policies = policy.by_layer(rows.trace.header.layers)
    sets = {layer_policy: _uniform_set(rows, layer_policy) for layer_policy in dict.fromkeys(layer_policies)}
    return torch.stack([sets[layer_policy][:, layer] for layer, layer_policy in enumerate(layer_policies)], dim=1)


def _uniform_set(rows: Rows, policy: Policy) -> Tensor:
    if rows.logits is not None and cpu.serves(rows.logits, policy):
        return route_compiled(rows.logits, cpu.Steps(rows.trace.router(), policy, rows.placement), rows.layout).selected
    return decide_routing(rows.step, policy).keep


def deployment_figures(rank_rows: Sequence[Rows], sets: Sequence[Tensor]) -> Tensor:
    """The figures of Deployed per batch and layer, if each rank's rows use its set. float64 [batches * layers, 4]"""
    reports: list[Report] = []
    for rows, S in zip(rank_rows, sets, strict=True):
        if rows.logits is not None:
            reports.append(route_prepared(rows.step, rows.trace.router(), Policy(warmup=1), keep=S))
        else:
            active = rows.step.union(rows.step.native_mask & S.unsqueeze(-2))
            reports.append(report(rows.step, Selection(S), active))
    active = torch.stack([rank_report.active for rank_report in reports])  # [ranks, batches, layers, N]
    loaded, placement = active.any(0), rank_rows[0].placement
    fullest = load(loaded, placement.devices, placement.num_devices).amax(-1)
    mass = torch.stack([rank_report.mass for rank_report in reports]).mean(0)
    figures = (loaded.sum(-1), active.sum(-1).double().mean(0), fullest, mass)
    return torch.stack([figure.double().flatten() for figure in figures], dim=-1)
