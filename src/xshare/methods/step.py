"""Step: one layer of one decode step, the input of every method. Selection: what a method decides.

Both may have leading dimensions: a replay passes [batches, layers, ...] at once, an engine none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from xshare.algorithms import best, covering, fixed_point, warm_up
from xshare.batch import BatchLayout, Placement
from xshare.policy import Policy, Score
from xshare.router import ABSENT


@dataclass
class Native:
    """The model's own routing."""

    ids: Tensor  # int64 [..., n, k]
    weights: Tensor  # float64 [..., n, k], before the routed scaling factor

    @property
    def top_k(self) -> int:
        return self.ids.shape[-1]

    def scatter(self, num_experts: int) -> Tensor:
        """The weights over all experts, zero outside the row's top-k. float64 [..., n, N]"""
        zeros = self.weights.new_zeros(*self.ids.shape[:-1], num_experts)
        return zeros.scatter_add_(-1, self.ids, self.weights)


@dataclass
class Step:
    score: Tensor  # float32 or float64 [..., n, N], finite
    choice: Tensor  # float64 [..., n, N], ABSENT in groups that the model's group rule excludes
    usable: Tensor  # bool [..., n]: rows without NaN or +inf, and with a value above -inf
    layout: BatchLayout
    placement: Placement
    native: Native | None = None  # None where only scores are known
    logits: Tensor | None = None  # float64 [..., n, N]; None where they are not known
    open_choice: Tensor | None = None  # choice before the group rule, which refinement applies after S
    tables: Mapping[str, Tensor] = field(default_factory=dict)  # of a calibrated method, for this layer
    cost: Tensor | None = None  # float64 [N + 1]: the cost of 0 to N experts on this machine
    # Results that several policies share, by the arguments of the method that computed them.
    _favourites: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    _covering: dict[float, Tensor] = field(default_factory=dict, init=False, repr=False)
    _fixed: dict[tuple[Score, int], Tensor] = field(default_factory=dict, init=False, repr=False)
    _sums: dict[tuple[Score, int], Tensor] = field(default_factory=dict, init=False, repr=False)

    @property
    def num_experts(self) -> int:
        return self.score.shape[-1]

    @cached_property
    def voting(self) -> Tensor:
        """bool [..., n]: rows whose scores count."""
        return self.layout.voting & self.usable

    def favourites(self, count: int) -> Tensor:
        """bool [..., n, N]: each row's `count` best experts by choice, among those it may take."""
        if count not in self._favourites:
            self._favourites[count] = best(self.choice, count) & (self.choice > ABSENT)
        return self._favourites[count]

    @cached_property
    def native_mask(self) -> Tensor:
        """bool [..., n, N]: each row's native top-k."""
        assert self.native is not None
        return torch.zeros_like(self.score, dtype=torch.bool).scatter_(-1, self.native.ids, True)

    def own(self, policy: Policy) -> Tensor:
        """bool [..., n, N]: W_i, the experts each row is sure to keep by warm-up, coverage and protection."""
        experts = self.favourites(policy.warmup)
        if policy.coverage is not None:
            experts = experts | self.covering(policy.coverage)
        if self.layout.protected is not None:
            experts = experts | (self.native_mask & self.layout.protected.unsqueeze(-1))
        return experts

    def covering(self, rho: float) -> Tensor:
        """bool [..., n, N]: each row's best native experts that hold rho of its native weight."""
        assert self.native is not None
        if rho not in self._covering:
            self._covering[rho] = covering(self.native.ids, self.native.weights, rho, self.num_experts)
        return self._covering[rho]

    def fixed(self, form: Score = "full", power: int = 1) -> Tensor:
        """Votes as integers, from top-k weights or full scores; zero in rows that do not vote. int64 [..., n, N]"""
        native = self.native if form == "topk" else None  # without native routing, "topk" means the scores too
        key: tuple[Score, int] = ("full" if native is None else "topk", power)
        if key not in self._fixed:
            score = self.score if native is None else native.scatter(self.num_experts)
            self._fixed[key] = fixed_point(score, self.voting, power)
        return self._fixed[key]

    def sums(self, form: Score = "full", power: int = 1) -> Tensor:
        """u, the column sums over the voting rows. int64 [..., N]"""
        if (form, power) not in self._sums:
            self._sums[form, power] = self.fixed(form, power).sum(dim=-2)
        return self._sums[form, power]

    def union(self, rows: Tensor) -> Tensor:
        """Experts that are in any voting row of `rows`. bool [..., n, N] -> bool [..., N]"""
        return warm_up(rows, self.voting)


@dataclass
class Selection:
    """A method's decision. Most give `keep` alone: one set for the batch, refined by the model's own router."""

    keep: Tensor  # bool [..., N], the set S
    rows: Tensor | None = None  # bool [..., n, N], if a method limits each row separately
    renormalize: bool | None = None  # if a method has a weight rule of its own
    routed: tuple[Tensor, Tensor] | None = None  # ids, weights [..., n, k], if a method substitutes experts itself

    @property
    def allowed(self) -> Tensor:
        """bool [..., n or 1, N]: what each row may use."""
        return self.keep.unsqueeze(-2) if self.rows is None else self.rows
