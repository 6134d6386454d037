"""What a hook needs of its layer's selector, on a CPU or a GPU."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from xshare.policy import Policy


class Selector(Protocol):
    cannot_route: str | None  # the last logits that it should have routed and could not, described
    routes: torch.dtype | None  # it routes logits of this type itself; None: the engine routes

    def masked(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits with the lowest finite value outside S, and each row's share of its score inside S, [n, 1]. Where the
        step is left alone: the logits as they are, and a share of 1 or none."""

    def routed(self, logits: Tensor) -> Any:
        """The complete routing, as the engine would compute it from masked logits. None where the selector does not
        route; the logits are then unchanged."""

    def masked_bias(self, logits: Tensor) -> Tensor:
        """The layer's correction bias with the lowest finite value outside S, [N]; unmasked where the step is left
        alone."""

    def rerouted(self, logits: Tensor, weights: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The engine's weights and ids [n, k], or ours where selection acts and leaves an expert out."""

    def check_policy(self, policy: Policy) -> None:
        """Refuse a policy for which its kernels were not compiled."""

    def set_policy(self, policy: Policy) -> None:
        """Use this layer's policy from the next step on."""

    def move(self, devices: Tensor) -> None:
        """The engine has moved experts: the device of each, int64 [N]."""

    def compile(self, dtype: torch.dtype) -> None:
        """Compile now, with the gate closed: a captured graph cannot wait for a compiler."""
