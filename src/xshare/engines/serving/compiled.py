"""What the kernels of a server are compiled and captured for: it limits the policies that can be set while serving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from xshare.engines.serving.settings import Settings
from xshare.engines.serving.state import rows_within
from xshare.kernels.limits import THRESHOLDS, thresholds_of
from xshare.policy import Policy


@dataclass(frozen=True)
class Compiled:
    never_within: int  # steps of at most so many rows are never acted on: natively they load no more than the budget
    thresholds: frozenset[str]  # that policies may set
    rows_per_request: int  # of most requests; 0: no policy may set a request budget
    protects: bool  # whether rows can be protected
    one_launch: bool  # do all of routing in the selection's launch, where possible

    @classmethod
    def of(
        cls, settings: Settings, policy: Policy, layers: list[int], top_k: int, drafts: int, every_size: bool
    ) -> Self:
        """`policy`: the first one. `layers`: numbers of the model's MoE layers. `every_size`: act on steps of any
        size, also within the budget."""
        policies = policy.by_layer(layers)
        # Code for request budgets makes the kernel slower even where no policy sets one, so it is not there by default.
        by_request = any(p.request_budget for p in policies) or (settings.live == "any" and drafts > 0)
        return cls(
            never_within=0 if every_size else rows_within(policy, layers, top_k),
            thresholds=THRESHOLDS if settings.live == "any" else thresholds_of(policies),
            rows_per_request=1 + drafts if by_request else 0,
            protects=settings.protect,
            one_launch=settings.one_launch,
        )


def start_fields(policies: Sequence[Policy]) -> dict[str, Any]:
    """Fields of the `xshare` key for an engine that will be set to these policies, or to any where none is named. Its
    kernels have the code that they need, and where one policy can ask for all of it, no more."""
    fields: dict[str, Any] = {"warmup": 1}
    if any(policy.request_budget for policy in policies):
        fields["request_budget"] = 1
    if any(policy.device_budget is not None for policy in policies):
        fields["device_budget"] = 1
    thresholds = {name: getattr(policy, name) for policy in policies for name in sorted(thresholds_of([policy]))}
    # One policy adds experts for the batch by one rule alone.
    if not policies or len({"device_budget", "mass", "price"} & (fields | thresholds).keys()) > 1:
        return fields | {"live": "any"}
    return fields | thresholds
