"""Torch's side of the compiled steps: tensors in, arrays out, and when they can serve."""

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

METHODS = {"xshare": None, "native": None, "oea": True}  # whether weights inside S are renormalised; None: as natively
FIGURES = len(Figure)
KNOWN = (torch.float32, torch.float64)  # to NumPy
Array = NDArray[Any]
log = logging.getLogger("xshare")


@cache
def installed() -> bool:
    """Whether Numba is; one line says so where it is not."""
    if find_spec("numba") is None:
        log.warning("xshare: selection on a CPU takes its slow form, the reference: pip install numba for the fast one")
        return False
    return True


def serves(rows: Tensor, policy: Policy) -> bool:
    """Whether the compiled steps can take them; otherwise the reference does."""
    return rows.device.type == "cpu" and policy.method in METHODS and rows.numel() > 0 and installed()


@dataclass
class Routed:
    """What became of some steps, [B, ...]. Before a type is chosen for the weights."""

    ids: Array  # int64 [B, n, k]
    weights: Array  # float64 [B, n, k]
    selected: Array  # bool [B, N]
    active: Array
    active_native: Array
    figures: Array  # float64 [figures, B]


class Steps:
    """A router and a policy, made ready once, to be called step after step."""

    def __init__(
        self, router: RouterSpec, policy: Policy, placement: Placement | None = None, cost: Tensor | None = None
    ) -> None:
        from xshare.kernels.cpu.steps import route_one, route_steps, settle_rows

        self.route_steps, self.settle_rows, self.route_one = route_steps, settle_rows, route_one
        self.sets: Array = np.empty((3, 1, 0), np.bool_)  # S and what was loaded of it, of the last single step
        self.top_k, self.by_request = router.top_k, policy.request_budget > 0
        self.bias, self.placement = router.correction_bias, placement
        # A rival knows no costs.
        self.cost = NOTHING[0] if cost is None or policy.method != "xshare" else cost.numpy()
        self.whole, self.real = numbers(policy, router, 1 if placement is None else placement.num_devices)

    def __call__(self, logits: Tensor, layout: BatchLayout | None = None) -> Routed:
        """float [..., n, N], a request a row where no layout says otherwise; layout and placement fit them."""
        *lead, n, N = logits.shape
        rows = as_float64(logits).reshape(-1, n, N)
        B = len(rows)
        ids, weights = np.empty((B, n, self.top_k), np.int64), np.empty((B, n, self.top_k))
        sets, figures = np.empty((3, B, N), np.bool_), np.empty((FIGURES, B))
        self.route_steps(
            rows,
            *self._given(lead, B, n, N, layout),
            ids,
            weights,
            sets[0],
            sets[1],
            sets[2],
            figures,
        )
        return Routed(ids, weights, sets[0], sets[1], sets[2], figures)

    def _given(self, lead: list[int], B: int, n: int, N: int, layout: BatchLayout | None) -> tuple[Any, ...]:
        """What the compiled steps take beside logits: bias, requests, slots and their number, protected rows, devices,
        cost, the router's and the policy's numbers."""
        bias = NOTHING if self.bias is None else by_step(self.bias.double(), lead)
        devices = one_device(N) if self.placement is None else by_step(self.placement.devices, lead)
        if layout is None:
            requests = one_per_row(n)
            return bias, requests, requests, n, nobody(n), devices, self.cost, self.whole, self.real
        requests = layout.array
        if len(requests) not in (1, B):  # fewer leading dimensions than the logits have
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
        """A single step, logits [n, N] and the model's own weights and ids [n, k] -> weights and ids as `settle` has
        them; writes its figures [figures, 1] and adds them to `sums`. None for types that need more than this.

        Everything in one call: around a step of a small model, Python and torch take longer than selecting.
        """
        known = logits.dtype in KNOWN and weights.dtype in KNOWN and ids.dtype == torch.int64
        dense = weights.is_contiguous() and ids.is_contiguous()
        if not (known and dense) or logits.requires_grad or weights.requires_grad:
            return None
        rows, theirs, their_ids = logits.numpy(), weights.numpy(), ids.numpy()
        own, own_ids = np.empty_like(theirs), np.empty_like(their_ids)
        if self.sets.shape[-1] != rows.shape[-1]:
            self.sets = np.empty((3, 1, rows.shape[-1]), np.bool_)
        self.route_one(
            rows, *self._given([1], 1, len(rows), rows.shape[1], layout),
            theirs, their_ids, rounding(weights.dtype), own, own_ids, self.sets, figures, sums,
        )  # fmt: skip
        return torch.from_numpy(own), torch.from_numpy(own_ids)

    def settle(self, found: Routed, weights: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and ids of the steps [B, n, k] in the model's own types; a row that keeps its native experts keeps
        their bits: `engines.transformers.layer.settle`."""
        theirs = weights.detach().numpy() if weights.dtype in KNOWN else as_float64(weights)
        their_ids = np.ascontiguousarray(ids.numpy().astype(np.int64, copy=False))
        own, own_ids = np.empty_like(theirs), np.empty_like(their_ids)
        exact = rounding(weights.dtype)
        self.settle_rows(found.selected, theirs, their_ids, exact, found.weights, found.ids, own, own_ids)
        return torch.from_numpy(own).to(weights.dtype), torch.from_numpy(own_ids).to(ids.dtype)


def as_float64(values: Tensor) -> Array:
    """By NumPy, which takes a tenth of torch's time for so little."""
    values = values.detach() if values.requires_grad else values
    array: Array = (values if values.dtype in KNOWN else values.float()).numpy()
    return array.astype(np.float64, order="C", copy=False)


def by_step(values: Tensor, lead: list[int]) -> Array:
    """[..., x] that broadcasts against [*lead, x] -> [B, x], or [1, x] where all steps share it."""
    if values.ndim == 1:
        shared: Array = values.numpy()[None]
        return np.ascontiguousarray(shared)
    expanded = values.expand(*lead, values.shape[-1]).reshape(-1, values.shape[-1])
    return np.ascontiguousarray(expanded.numpy())


# Read, never written: made once.
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
    """As the compiled steps read them, in the order of Whole and Real."""
    own = METHODS[policy.method]
    score_after, power_after = policy.votes
    native = policy.method == "native"  # its set is the union of what the rows want
    whole = {
        Whole.TOP_K: router.top_k,
        Whole.SIGMOID: router.scoring == "sigmoid",
        Whole.RENORMALIZE: router.renormalize,
        Whole.RENORMALIZE_OURS: router.renormalize if own is None else own,
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
        np.array([whole[each] for each in Whole], np.int64),
        np.array([-1.0 if real[each] is None else real[each] for each in Real]),
    )


@cache
def rounding(dtype: torch.dtype) -> float:
    """By how much weights of a type differ from ours, relatively."""
    return max(1e-5, 4 * torch.finfo(dtype).eps)
