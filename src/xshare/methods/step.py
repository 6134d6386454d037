"""Step: one layer of one decode step as every method sees it. Selection: what a method decides.

Both carry leading dimensions: a replay hands over [batches, layers, ...] at once, an engine none.
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
    """What the model's own router would do."""

    ids: Tensor  # int64 [..., n, k]
    weights: Tensor  # float64 [..., n, k], before the routed scaling factor

    @property
    def top_k(self) -> int:
        return self.ids.shape[-1]

    def scatter(self, num_experts: int) -> Tensor:
        """The weights over all experts, zero outside the row's top-k: the paper's other gating value."""
        zeros = self.weights.new_zeros(*self.ids.shape[:-1], num_experts)
        return zeros.scatter_add_(-1, self.ids, self.weights)


@dataclass
class Step:
    score: Tensor  # float32 or float64 [..., n, N], finite
    choice: Tensor  # float64 [..., n, N], ABSENT where the model's own group rule does not look
    usable: Tensor  # bool [..., n]: rows without NaN, +inf or nothing but -inf
    layout: BatchLayout
    placement: Placement
    native: Native | None = None  # None where only scores are known
    logits: Tensor | None = None  # float64 [..., n, N]; None where they are not known
    open_choice: Tensor | None = None  # choice before the group rule, which refinement applies after S
    tables: Mapping[str, Tensor] = field(default_factory=dict)  # a calibrated method's own, for this layer
    cost: Tensor | None = None  # float64 [N + 1]: what so many experts cost here
    # What policies share, by the count or the form it was asked for.
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
        """bool [..., n, N]: each row's `count` best experts by choice, of those it may take."""
        if count not in self._favourites:
            self._favourites[count] = best(self.choice, count) & (self.choice > ABSENT)
        return self._favourites[count]

    @cached_property
    def native_mask(self) -> Tensor:
        """bool [..., n, N]: each row's native top-k."""
        assert self.native is not None
        return torch.zeros_like(self.score, dtype=torch.bool).scatter_(-1, self.native.ids, True)

    def own(self, policy: Policy) -> Tensor:
        """bool [..., n, N]: W_i, what each row is sure to keep, by its warm-up, its coverage and its protection."""
        found = self.favourites(policy.warmup)
        if policy.coverage is not None:
            found = found | self.covering(policy.coverage)
        if self.layout.protected is not None:
            found = found | (self.native_mask & self.layout.protected.unsqueeze(-1))
        return found

    def covering(self, rho: float) -> Tensor:
        """bool [..., n, N]: each row's native experts that bring it to rho of its native weight."""
        assert self.native is not None
        if rho not in self._covering:
            self._covering[rho] = covering(self.native.ids, self.native.weights, rho, self.num_experts)
        return self._covering[rho]

    def fixed(self, form: Score = "full", power: int = 1) -> Tensor:
        """Votes as integers in either form, zero in rows that do not vote. int64 [..., n, N]"""
        native = self.native if form == "topk" else None  # scores alone are taken as they are
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
        """Experts that any voting row has in `rows`. bool [..., n, N] -> bool [..., N]"""
        return warm_up(rows, self.voting)


@dataclass
class Selection:
    """A method's decision. Most give `keep` alone: one set for the batch, refined by the model's own router."""

    keep: Tensor  # bool [..., N], the set S
    rows: Tensor | None = None  # bool [..., n, N], where a method limits each row on its own
    renormalize: bool | None = None  # where a method has a weight rule of its own
    routed: tuple[Tensor, Tensor] | None = None  # ids, weights [..., n, k], where a method substitutes experts itself

    @property
    def allowed(self) -> Tensor:
        """bool [..., n or 1, N]: what each row may use."""
        return self.keep.unsqueeze(-2) if self.rows is None else self.rows
