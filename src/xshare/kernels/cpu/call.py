"""The torch side of the compiled steps: when they can serve, and calls with tensors in and arrays out."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xshare.batch import BatchLayout, Placement
from xshare.kernels.cpu.numbers import Figure, Real, Whole
from xshare.policy import Policy
from xshare.router import RouterSpec

METHODS = {"xshare": None, "native": None, "oea": True}  # whether weights inside S are renormalised; None: as native
FIGURES = len(Figure)
KNOWN = (torch.float32, torch.float64)  # types that NumPy has too
Array = NDArray[Any]
log = logging.getLogger("xshare")


@cache
def installed() -> bool:
    """Whether Numba is installed; logs one warning if it is not."""
    if find_spec("numba") is None:
        log.warning("xshare: selection on a CPU takes its slow form, the reference: pip install numba for the fast one")
        return False
    return True


def serves(rows: Tensor, policy: Policy) -> bool:
    """Whether the compiled steps can serve these rows and this policy; otherwise the reference does."""
    return rows.device.type == "cpu" and policy.method in METHODS and rows.numel() > 0 and installed()


@dataclass
class Routed:
    """The routing of B steps, before the weights get their final type."""

    ids: Array  # int64 [B, n, k]
    weights: Array  # float64 [B, n, k]
    selected: Array  # bool [B, N]
    active: Array
    active_native: Array
    figures: Array  # float64 [figures, B]


class Steps:
    """A router and a policy, prepared once, to be called step after step."""

    def __init__(
        self, router: RouterSpec, policy: Policy, placement: Placement | None = None, cost: Tensor | None = None
    ) -> None:
        from xshare.kernels.cpu.steps import route_one, route_steps, settle_rows

        self.route_steps, self.settle_rows, self.route_one = route_steps, settle_rows, route_one
        self.sets: Array = np.empty((3, 1, 0), np.bool_)  # of the last single step: S, active, active_native
        self.top_k, self.by_request = router.top_k, policy.request_budget > 0
        self.bias, self.placement = router.correction_bias, placement
        # Rivals ignore costs.
        self.cost = NOTHING[0] if cost is None or policy.method != "xshare" else cost.numpy()
        self.whole, self.real = numbers(policy, router, 1 if placement is None else placement.num_devices)

    def __call__(self, logits: Tensor, layout: BatchLayout | None = None) -> Routed:
        """Route steps of logits, float [..., n, N]. Without a layout every row is a request. Layout and placement must
        already fit the logits."""
        *lead, n, N = logits.shape
        rows = as_float64(logits).reshape(-1, n, N)
        B = len(rows)
        ids, weights = np.empty((B, n, self.top_k), np.int64), np.empty((B, n, self.top_k))
        sets, figures = np.empty((3, B, N), np.bool_), np.empty((FIGURES, B))
        self.route_steps(
            rows,
            *self._step_arguments(lead, B, n, N, layout),
            ids,
            weights,
            sets[0],
            sets[1],
            sets[2],
            figures,
        )
        return Routed(ids, weights, sets[0], sets[1], sets[2], figures)

    def _step_arguments(self, lead: list[int], B: int, n: int, N: int, layout: BatchLayout | None) -> tuple[Any, ...]:
        """What the compiled steps take besides logits: bias, requests, slots and their number, protected rows, devices,
        cost, and the whole and real numbers of router and policy."""
        bias = NOTHING if self.bias is None else by_step(self.bias.double(), lead)
        devices = one_device(N) if self.placement is None else by_step(self.placement.devices, lead)
        if layout is None:
            requests = one_per_row(n)
            return bias, requests, requests, n, nobody(n), devices, self.cost, self.whole, self.real
        requests = layout.array
        if len(requests) not in (1, B):  # the layout has fewer leading dimensions than the logits
            requests = by_step(layout.requests, lead)
        slots, num_slots = requests, n
        if self.by_request:
            slots, num_slots = by_step(layout.slots, lead), layout.num_slots
        marks = layout.protected
        protected = nobody(n) if marks is None else by_step(marks, lead)
        return bias, requests, slots, num_slots, protected, devices, self.cost, self.whole, self.real

    def route_single(
        self, logits: Tensor, weights: Tensor, ids: Tensor, layout: BatchLayout | None, figures: Array, sums: Array
    ) -> tuple[Tensor, Tensor] | None:
        """Route a single step: logits [n, N] and the model's own weights and ids [n, k] -> weights and ids as `settle`
        returns them. Writes the step's figures [figures, 1] and adds them to `sums`. None for types that need
        conversion.

        One call does everything: around a step of a small model, Python and torch take longer than selection.
        """
        known = logits.dtype in KNOWN and weights.dtype in KNOWN and ids.dtype == torch.int64
        dense = weights.is_contiguous() and ids.is_contiguous()
        if not (known and dense) or logits.requires_grad or weights.requires_grad:
            return None
        rows, native_weights, native_ids = logits.numpy(), weights.numpy(), ids.numpy()
        new_weights, new_ids = np.empty_like(native_weights), np.empty_like(native_ids)
        if self.sets.shape[-1] != rows.shape[-1]:
            self.sets = np.empty((3, 1, rows.shape[-1]), np.bool_)
        self.route_one(
            rows, *self._step_arguments([1], 1, len(rows), rows.shape[1], layout),
            native_weights, native_ids, rounding(weights.dtype), new_weights, new_ids, self.sets, figures, sums,
        )  # fmt: skip
        return torch.from_numpy(new_weights), torch.from_numpy(new_ids)

    def settle(self, routed: Routed, weights: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and ids of the steps [B, n, k] in the types of the model's own `weights` and `ids`. A row that keeps
        its native experts keeps the model's exact bits, as in `engines.transformers.layer.settle`."""
        native_weights = weights.detach().numpy() if weights.dtype in KNOWN else as_float64(weights)
        native_ids = np.ascontiguousarray(ids.numpy().astype(np.int64, copy=False))
        new_weights, new_ids = np.empty_like(native_weights), np.empty_like(native_ids)
        self.settle_rows(
            routed.selected, native_weights, native_ids, rounding(weights.dtype), routed.weights, routed.ids,
            new_weights, new_ids,
        )  # fmt: skip
        return torch.from_numpy(new_weights).to(weights.dtype), torch.from_numpy(new_ids).to(ids.dtype)


def as_float64(values: Tensor) -> Array:
    """Converted by NumPy, which takes a tenth of torch's time for small tensors."""
    values = values.detach() if values.requires_grad else values
    array: Array = (values if values.dtype in KNOWN else values.float()).numpy()
    return array.astype(np.float64, order="C", copy=False)


def by_step(values: Tensor, lead: list[int]) -> Array:
    """[..., x] that broadcasts against [*lead, x] -> [B, x], or [1, x] if all steps share it."""
    if values.ndim == 1:
        shared: Array = values.numpy()[None]
        return np.ascontiguousarray(shared)
    expanded = values.expand(*lead, values.shape[-1]).reshape(-1, values.shape[-1])
    return np.ascontiguousarray(expanded.numpy())


# Created once: read, never written.
NOTHING: Array = np.empty((1, 0))


@cache
def one_per_row(n: int) -> Array:
    return np.arange(n)[None]


@cache
def nobody(n: int) -> Array:
    return np.zeros((1, n), np.bool_)


@cache
def one_device(num_experts: int) -> Array:
    return np.zeros((1, num_experts), np.int64)


def numbers(policy: Policy, router: RouterSpec, devices: int) -> tuple[Array, Array]:
    """The numbers of policy and router for the compiled steps, in the order of Whole and Real."""
    renormalize = METHODS[policy.method]
    score_after, power_after = policy.votes
    native = policy.method == "native"  # its set is the union of the rows' native experts
    whole = {
        Whole.TOP_K: router.top_k,
        Whole.SIGMOID: router.scoring == "sigmoid",
        Whole.RENORMALIZE: router.renormalize,
        Whole.RENORMALIZE_OURS: router.renormalize if renormalize is None else renormalize,
        Whole.GROUPS: router.n_group,
        Whole.KEEP_GROUPS: router.topk_group,
        Whole.WARMUP: policy.warmup,
        Whole.BUDGET: policy.batch_budget,
        Whole.REQUEST_BUDGET: policy.request_budget,
        Whole.DEVICE_BUDGET: -1 if policy.device_budget is None else policy.device_budget,
        Whole.ROUNDS: policy.fill == "rounds",
        Whole.NUM_DEVICES: devices,
        Whole.FULL: policy.score == "full",
        Whole.POWER: policy.power,
        Whole.FULL_AFTER: score_after == "full",
        Whole.POWER_AFTER: power_after,
        Whole.NATIVE: native,
    }
    real = {
        Real.MASS: policy.mass,
        Real.COVERAGE: 1.0 if native else policy.coverage,
        Real.PRICE: policy.price,
        Real.SCALE: router.routed_scaling_factor,
    }
    return (
        np.array([whole[name] for name in Whole], np.int64),
        np.array([-1.0 if real[name] is None else real[name] for name in Real]),
    )


@cache
def rounding(dtype: torch.dtype) -> float:
    """The relative difference from float64 weights that rounding to a type may cause."""
    return max(1e-5, 4 * torch.finfo(dtype).eps)
