"""Replay over data-parallel ranks: what a deployment loads where ranks share one set, and where each has its own.

The requests of a batch are dealt out to the ranks in turn. All experts are spread over all devices, and a device loads
what the rows of any rank need of it.
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
    """One policy on all batches and layers, means over them."""

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
    """Every policy twice: with one set for all ranks, and with a set for each."""
    if ranks > int(batches.requests.max()) + 1:
        raise XShareError(f"ranks must be at most {int(batches.requests.max()) + 1}, the requests of a batch")
    chunk = max(1, chunk_elements // (len(trace.header.layers) * batches.tokens.shape[1] * trace.header.num_experts))
    found: dict[tuple[Policy, bool], list[Tensor]] = {(policy, on): [] for policy in policies for on in (True, False)}
    with torch.inference_mode():
        for start in range(0, len(batches), chunk):
            piece = Batches(batches.tokens[start : start + chunk], batches.requests[start : start + chunk])
            everybody = Rows(trace, piece, placement)
            each = [Rows(trace, of_rank(piece, rank, ranks), placement) for rank in range(ranks)]
            for policy in policies:
                S = set_of(everybody, policy)
                found[policy, True].append(deployed(each, [S] * ranks))
                found[policy, False].append(deployed(each, [set_of(rows, policy) for rows in each]))
            advance(len(piece))
    return [Deployed(*key, *torch.cat(parts).mean(0).tolist()) for key, parts in found.items()]


def of_rank(batches: Batches, rank: int, ranks: int) -> Batches:
    """That rank's requests of the batches."""
    mine = (batches.requests >= 0) & (batches.requests % ranks == rank)
    first = np.argsort(~mine, axis=1, kind="stable")[:, : max(1, int(mine.sum(1).max()))]

    def taken(values: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.take_along_axis(np.where(mine, values, -1), first, axis=1)

    return Batches(taken(batches.tokens), taken(batches.requests))


def set_of(rows: Rows, policy: Policy) -> Tensor:
    """S, bool [batches, layers, N]; in each layer its own policy's."""
    own = policy.by_layer(rows.trace.header.layers)
    found = {each: _set_of(rows, each) for each in dict.fromkeys(own)}
    return torch.stack([found[each][:, layer] for layer, each in enumerate(own)], dim=1)


def _set_of(rows: Rows, policy: Policy) -> Tensor:
    if rows.logits is not None and cpu.serves(rows.logits, policy):
        return route_compiled(rows.logits, cpu.Steps(rows.trace.router(), policy, rows.placement), rows.layout).selected
    return decide_routing(rows.step, policy).keep


def deployed(each: Sequence[Rows], sets: Sequence[Tensor]) -> Tensor:
    """The figures of Deployed for each batch and layer, of every rank's rows inside its set. [batches * layers, 4]"""
    reports: list[Report] = []
    for rows, S in zip(each, sets, strict=True):
        if rows.logits is not None:
            reports.append(route_prepared(rows.step, rows.trace.router(), Policy(warmup=1), keep=S))
        else:
            active = rows.step.union(rows.step.native_mask & S.unsqueeze(-2))
            reports.append(report(rows.step, Selection(S), active))
    active = torch.stack([each.active for each in reports])  # [ranks, batches, layers, N]
    loaded, placement = active.any(0), each[0].placement
    fullest = load(loaded, placement.devices, placement.num_devices).amax(-1)
    mass = torch.stack([each.mass for each in reports]).mean(0)
    figures = (loaded.sum(-1), active.sum(-1).double().mean(0), fullest, mass)
    return torch.stack([figure.double().flatten() for figure in figures], dim=-1)
