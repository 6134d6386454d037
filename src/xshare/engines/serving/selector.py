"""What a hook asks of whoever selects for its layer, on either kind of device."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from xshare.policy import Policy


class Selector(Protocol):
    cannot_route: str | None  # logits that it should have routed by itself and could not
    routes: torch.dtype | None  # of logits that it routes by itself; None: it leaves routing to the engine

    def masked(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits with the lowest finite value outside S, and each row's share of its score inside S, [n, 1]; the logits
        as they are, and perhaps no share, where this step is left alone."""

    def routed(self, logits: Tensor) -> Any:
        """All of routing, as the engine would have worked it out from masked logits; None where that was not done, and
        the logits are as they came."""

    def masked_bias(self, logits: Tensor) -> Tensor:
        """The layer's correction bias with the lowest finite value outside S, [N]; its own where the step is left
        alone."""

    def rerouted(self, logits: Tensor, weights: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The engine's weights and ids [n, k], or ours where selection acts and leaves an expert out."""

    def check(self, policy: Policy) -> None:
        """Refuse a policy that it cannot follow any more."""

    def set_policy(self, policy: Policy) -> None:
        """This layer's own, from the next step on."""

    def move(self, devices: Tensor) -> None:
        """The engine has moved experts: int64 [N]."""

    def compile(self, dtype: torch.dtype) -> None:
        """Compile now: a captured graph cannot wait for a compiler. The gate is closed."""
