"""select() and route(), the public functions: validate the inputs, run the method, report what it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xshare.algorithms import load, refine
from xshare.batch import BatchLayout, Placement
from xshare.errors import LayoutError, PolicyError, RouterError
from xshare.kernels import cpu, fused_set
from xshare.kernels.cpu.numbers import HALF, Figure
from xshare.methods import Native, Selection, Step, decide, decide_routing
from xshare.policy import Policy
from xshare.router import RouterSpec

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Report:
    """What a selection does to a batch, on the device of its inputs. Leading dimensions are kept."""

    active: Tensor  # bool [..., N]: experts the voting rows are routed to
    active_native: Tensor  # bool [..., N]: the same without selection
    mass: Tensor  # float64 [...]: share of the voting rows' native top-k weight on experts in S
    below_half: Tensor  # float64 [...]: share of the voting rows that keep less than half of their native weight
    smallest_kept: Tensor  # float64 [...]: the smallest share of its native weight that any voting row keeps
    mass_shared: Tensor  # float64 [...]: mass of the voting rows that are not protected
    top1_kept: Tensor  # float64 [...]: share of the voting rows whose native best expert is kept
    max_load: Tensor  # int64 [...]: most selected experts on one device


@dataclass(frozen=True)
class Routing(Report):
    ids: Tensor  # int64 [..., n, k], best first
    weights: Tensor  # float32 (float64 for float64 logits) [..., n, k]
    selected: Tensor  # bool [..., N]: S
    excluded: Tensor  # int64 [...]: rows that should vote but cannot (NaN, +inf, or only -inf)


def select(
    scores: Tensor,
    policy: Policy | str | Mapping[str, Any],
    *,
    layout: BatchLayout | None = None,
    placement: Placement | None = None,
    choice: Tensor | None = None,
) -> Tensor:
    """The set S for a batch of scores g. float [..., n, N] -> bool [..., N].

    `policy`: a Policy, its string as `k0=1,m=24`, a preset's name, or a mapping of its fields.
    Scores are used as they are (in [0, 1], see RouterSpec.score). Warm-up ranks a row's experts by `choice`, or by the
    scores if no choice is given. S may be smaller than k: only route() tops it up.
    """
    policy = Policy.of(policy)
    _check_rows(scores, "scores")
    if choice is not None:
        _check_rows(choice, "choice")
        if choice.shape != scores.shape:
            raise LayoutError(f"choice must have the shape of scores {tuple(scores.shape)}, not {tuple(choice.shape)}")
    check_policy(policy, placement, scores.shape[-1])
    callers_layout = layout
    layout, placement = fit_layout(scores, layout, placement)
    if layout.protected is not None:
        raise LayoutError("protected rows keep their native experts, which select() does not know: call route()")
    if choice is None and (keep := fused_set(scores, policy, callers_layout, placement)) is not None:
        return keep
    usable = _usable(scores) if choice is None else _usable(scores) & _usable(choice)
    score = scores.to(torch.promote_types(scores.dtype, torch.float32)).nan_to_num(0, 0, 0)
    ranked = scores if choice is None else choice
    ranked = ranked.clamp(min=torch.finfo(ranked.dtype).min)  # an expert of choice -inf ranks last, but may be taken
    return decide(Step(score, ranked, usable, layout, placement), policy).keep


def route(
    logits: Tensor,
    router: RouterSpec,
    policy: Policy | str | Mapping[str, Any],
    *,
    layout: BatchLayout | None = None,
    placement: Placement | None = None,
    tables: Mapping[str, Tensor] | None = None,
    cost: Sequence[float] | Tensor | None = None,
) -> Routing:
    """Experts and weights for every row of a batch, and a report. float [..., n, N] -> ids, weights [..., n, k].

    `policy`: a Policy, its string as `rho=0.7`, a preset's name as `balanced`, or a mapping of its fields.
    `tables`: the tables of a calibrated method for this layer.
    `cost`: what 0 to N experts cost on this machine, in units of one expert. With it a price is charged for the cost of
    S instead of its size, and any other S is filled up to the end of its stair.
    """
    policy = Policy.of(policy)
    _check_rows(logits, "logits")
    if not isinstance(router, RouterSpec):
        raise RouterError(f"router must be an xshare.RouterSpec, not {type(router).__name__}")
    check_policy(policy, placement, logits.shape[-1])
    callers_layout = layout
    layout, placement = fit_layout(logits, layout, placement)
    table = None if cost is None else cost_table(cost, logits)
    check_router(logits, router)
    if not tables and cpu.serves(logits, policy):
        return route_compiled(logits, _cached_steps(router, policy, placement, table), layout)
    step = prepare_step(logits, router, layout, placement, tables, table)
    keep = fused_set(logits, policy, callers_layout, placement, router, table)
    return route_prepared(step, router, policy, torch.promote_types(logits.dtype, torch.float32), keep)


def route_compiled(logits: Tensor, steps: cpu.Steps, layout: BatchLayout) -> Routing:
    """`route` on a CPU in one compiled call, for arguments that were already checked."""
    result, lead = steps(logits, layout), logits.shape[:-2]

    def as_tensor(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array.reshape((*lead, *array.shape[1:])))  # NumPy's reshape is cheaper than torch's

    def figure(which: Figure) -> NDArray[Any]:
        values: NDArray[Any] = result.figures[which]
        return values

    dtype = np.float64 if logits.dtype == torch.float64 else np.float32
    return Routing(
        ids=as_tensor(result.ids),
        weights=as_tensor(result.weights.astype(dtype, copy=False)),
        selected=as_tensor(result.selected),
        active=as_tensor(result.active),
        active_native=as_tensor(result.active_native),
        mass=as_tensor(figure(Figure.MASS)),
        mass_shared=as_tensor(figure(Figure.MASS_SHARED)),
        below_half=as_tensor(figure(Figure.BELOW_HALF)),
        smallest_kept=as_tensor(figure(Figure.SMALLEST_KEPT)),
        top1_kept=as_tensor(figure(Figure.TOP1_KEPT)),
        max_load=as_tensor(figure(Figure.MAX_LOAD).astype(np.int64)),
        excluded=as_tensor(figure(Figure.EXCLUDED).astype(np.int64)),
    )


_latest: list[tuple[tuple[Any, ...], cpu.Steps]] = []  # the steps of the latest calls, newest first


def _cached_steps(router: RouterSpec, policy: Policy, placement: Placement, cost: Tensor | None) -> cpu.Steps:
    """The compiled steps for these arguments, reused while a caller passes the same objects."""
    key = (router, policy, placement, cost)
    for cached_key, steps in _latest:
        if all(a is b for a, b in zip(cached_key, key, strict=True)):
            return steps
    _latest.insert(0, (key, cpu.Steps(*key)))
    del _latest[8:]
    return _latest[0][1]


def check_policy(policy: Policy, placement: Placement | None, num_experts: int) -> None:
    """Refuse a policy that one layer of `num_experts` experts cannot run."""
    if policy.differs_by_layer:
        name = "layer_budgets (ml)" if policy.layer_budgets else "layer_weights (w)"
        raise PolicyError(f"{name} need the layer's number: pass policy.for_layer(number) of {policy}")
    if policy.device_budget is not None and placement is None:
        raise LayoutError("placement is required with device_budget (mg): it says which device holds each expert")
    if policy.warmup > num_experts:
        raise PolicyError(f"warmup (k0) must be at most the number of experts ({num_experts}), not {policy.warmup}")


def cost_table(cost: Sequence[float] | Tensor, rows: Tensor) -> Tensor:
    """`cost`, checked, as float64 [N + 1] on the device of `rows` [..., n, N]."""
    size = rows.shape[-1] + 1
    try:
        table = torch.as_tensor(cost, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise LayoutError(f"cost must be {size} numbers, for 0 to {size - 1} experts, not {cost!r}") from None
    if table.shape != (size,):
        got = list(table.shape)
        raise LayoutError(f"cost must be {size} numbers, for 0 to {size - 1} experts, not of shape {got}")
    if not bool(table.isfinite().all()) or bool((table.diff() < 0).any()):
        raise LayoutError("cost must be finite and never fall: more experts never cost less")
    return table.to(rows.device)  # after the checks: reading a table on the host synchronises with no device


def fit_layout(rows: Tensor, layout: BatchLayout | None, placement: Placement | None) -> tuple[BatchLayout, Placement]:
    """Layout and placement, or their defaults, checked against `rows` [..., n, N] and moved to its device."""
    for name, value, kind in (("layout", layout, BatchLayout), ("placement", placement, Placement)):
        if value is not None and not isinstance(value, kind):
            raise LayoutError(f"{name} must be an xshare.{kind.__name__}, not {type(value).__name__}")
    *lead, n, N = rows.shape
    layout = _one_per_row(n, rows.device) if layout is None else layout.to(rows.device)
    got_requests = tuple(layout.requests.shape)
    if got_requests != (n,) and (layout.rows != n or not _broadcasts(got_requests, (*lead, n))):
        raise LayoutError(
            f"requests must hold one id for each of the {n} rows of {tuple(rows.shape)}, not {got_requests}"
        )
    if placement is None:
        placement = _one_device(N, rows.device)
    got_devices = tuple(placement.devices.shape)
    if got_devices != (N,) and (placement.num_experts != N or not _broadcasts(got_devices, (*lead, N))):
        got = list(placement.devices.shape)
        raise LayoutError(f"placement must name a device for each of the {N} experts of {list(rows.shape)}, not {got}")
    return layout, placement.to(rows.device)


@lru_cache(maxsize=64)  # creating them takes longer than a small step; they are never written to
def _one_per_row(n: int, device: torch.device) -> BatchLayout:
    return BatchLayout.one_per_row(n, device)


@lru_cache(maxsize=64)
def _one_device(num_experts: int, device: torch.device) -> Placement:
    return Placement(torch.zeros(num_experts, dtype=torch.int64, device=device), 1)


def check_router(logits: Tensor, router: RouterSpec) -> None:
    """Refuse a router that cannot have made the logits [..., n, N]."""
    *lead, _, N = logits.shape
    router.check(N)
    if router.correction_bias is not None and not _broadcasts(tuple(router.correction_bias.shape), (*lead, N)):
        got = list(router.correction_bias.shape)
        raise RouterError(f"correction_bias must have the shape [{N}] or {[*lead, N]}, not {got}")


def prepare_step(
    logits: Tensor,
    router: RouterSpec,
    layout: BatchLayout,
    placement: Placement,
    tables: Mapping[str, Tensor] | None = None,
    cost: Tensor | None = None,
) -> Step:
    """The part of a step that does not depend on the policy, so that many policies can share it."""
    check_router(logits, router)
    usable = _usable(logits)
    logits = logits.double().masked_fill(~usable.unsqueeze(-1), 0)
    score = router.score(logits)
    choice = router.choice(logits, score)
    ids, real = refine(choice, torch.ones_like(choice, dtype=torch.bool), router)
    native = Native(ids, router.weight(logits, score, ids, real))
    return Step(
        score,
        router.limit_groups(choice),
        usable,
        layout,
        placement,
        native=native,
        logits=logits,
        open_choice=choice,
        tables=tables or {},
        cost=cost,
    )


def route_prepared(
    step: Step, router: RouterSpec, policy: Policy, dtype: torch.dtype = torch.float32, keep: Tensor | None = None
) -> Routing:
    """Select under one policy, or take S from `keep`, and route every row inside S."""
    assert step.logits is not None
    assert step.open_choice is not None
    selection = decide_routing(step, policy) if keep is None else Selection(keep)
    protected = keep_protected(step, selection)
    if selection.routed is not None:
        ids, weights = selection.routed
    else:
        rule = router if selection.renormalize is None else replace(router, renormalize=selection.renormalize)
        ids, real = refine(step.open_choice, selection.allowed, router, step.native_mask)
        weights = rule.weight(step.logits, step.score, ids, real)
    if protected is not None:
        assert step.native is not None
        ids, weights = step.native.ids.where(protected, ids), step.native.weights.where(protected, weights)
    spare_ids, spare_weights = _best_by_sum(selection.keep, step.sums(*policy.votes), router.top_k)
    usable = step.usable.unsqueeze(-1)
    ids = torch.where(usable, ids, spare_ids)
    weights = torch.where(usable, weights, spare_weights)
    return Routing(
        **vars(report(step, selection, used_experts(ids, step.voting, step.num_experts))),
        ids=ids,
        weights=(weights * router.routed_scaling_factor).to(dtype),
        selected=selection.keep,
        excluded=(step.layout.voting & ~step.usable).sum(-1),
    )


def keep_protected(step: Step, selection: Selection) -> Tensor | None:
    """Add the native experts of protected rows to a selection: rivals do not know about protection. -> the protected
    rows, bool [..., n, 1], or None if there are none."""
    if step.layout.protected is None:
        return None
    protected = (step.layout.protected & step.voting).unsqueeze(-1)
    selection.keep = selection.keep | step.union(step.native_mask & protected)
    selection.rows = None if selection.rows is None else selection.rows | (step.native_mask & protected)
    return protected


def report(step: Step, selection: Selection, active: Tensor) -> Report:
    """The report on a selection. `active`: bool [..., N], experts that the voting rows are routed to."""
    assert step.native is not None
    ids, voting = step.native.ids, step.voting.unsqueeze(-1)  # [..., n, k], [..., n, 1]
    kept = selection.allowed.expand_as(step.score).gather(-1, ids)
    total = step.native.weights.sum(-1)  # [..., n]
    share = torch.where(total > 0, (step.native.weights * kept).sum(-1) / total.clamp(min=1e-300), 1.0)
    share = share.masked_fill(~step.voting, 1.0)
    shared = voting if step.layout.protected is None else voting & ~step.layout.protected.unsqueeze(-1)
    placement = step.placement
    return Report(
        active=active,
        active_native=used_experts(ids, step.voting, step.num_experts),
        mass=_share(kept, step.native.weights * voting),
        mass_shared=_share(kept, step.native.weights * shared),
        below_half=(share < HALF).double().sum(-1) / step.voting.sum(-1).clamp(min=1),
        smallest_kept=share.amin(-1) if share.shape[-1] else torch.ones_like(total.sum(-1)),
        top1_kept=_share(kept[..., :1], voting.double()),
        max_load=load(selection.keep, placement.devices, placement.num_devices).amax(-1),
    )


def used_experts(ids: Tensor, rows: Tensor, num_experts: int) -> Tensor:
    """Experts that appear in the ids of the given rows. int64 [..., n, k], bool [..., n] -> bool [..., N]"""
    hits = torch.zeros(*ids.shape[:-2], num_experts, dtype=torch.int64, device=ids.device)
    counted = rows.unsqueeze(-1).expand(ids.shape).long()
    return hits.scatter_add_(-1, ids.flatten(-2), counted.flatten(-2)) > 0


def _share(kept: Tensor, weight: Tensor) -> Tensor:
    """Kept weight over all weight, [..., n, k] -> [...]; 1 where there is no weight to lose."""
    total = weight.sum((-2, -1))
    return torch.where(total > 0, (weight * kept).sum((-2, -1)) / total.clamp(min=1e-300), 1.0)


def _best_by_sum(S: Tensor, u: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The routing of rows with unusable logits: the best k of S by u, equal weights. -> ids, weights [..., 1, k]"""
    best, ids = u.masked_fill(~S, -1).sort(dim=-1, descending=True, stable=True)
    real = best[..., :k] >= 0
    ids = torch.where(real, ids[..., :k], ids[..., :1])
    return ids.unsqueeze(-2), (real.double() / real.sum(-1, keepdim=True).clamp(min=1)).unsqueeze(-2)


def _usable(rows: Tensor) -> Tensor:
    """Rows that can vote: no NaN, no +inf, and at least one value above -inf. [..., n, N] -> bool [..., n]"""
    return rows.amax(-1).isfinite()  # amax propagates NaN, and is infinite in the other two cases


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def _check_rows(rows: Tensor, name: str) -> None:
    if not isinstance(rows, Tensor) or rows.dtype not in FLOATS:
        kind = str(rows.dtype) if isinstance(rows, Tensor) else type(rows).__name__
        raise LayoutError(f"{name} must be a tensor of 16-, 32- or 64-bit floats [..., rows, experts], not {kind}")
    if rows.ndim < 2 or rows.shape[-1] == 0:
        raise LayoutError(f"{name} must have at least the dimensions [rows, experts], not {list(rows.shape)}")
