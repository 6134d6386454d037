"""Samples of older `xshare tune` files, which stored per-layer budgets outside the policy, in today's form."""

from __future__ import annotations

import re
from collections.abc import Sequence

from xshare.policy import Policy
from xshare.results import Row
from xshare.tune.layers import with_budget_per_layer

NAME = re.compile(r"k0=(\d+),m=\[([\d,]+)\](?:,score=(\w+))?")  # k0=1,m=[8,4]: an m for each layer


def upgrade_sample(sample: Row, layers: Sequence[int]) -> Row:
    """The sample in today's form. `layers`: the model's own numbers of its MoE layers."""
    upgraded = dict(sample)
    if (budgets := upgraded.pop("budgets", None)) is not None:
        upgraded["scan"] = str(
            with_budget_per_layer(Policy.parse(upgraded["scan"]), dict(zip(layers, budgets, strict=True)))
        )
    for name in ("policy", "timed"):
        if isinstance(upgraded.get(name), str) and (old := NAME.fullmatch(upgraded[name])):
            policy = Policy.parse(f"k0={old[1]},score={old[3] or 'topk'}")
            upgraded[name] = str(
                with_budget_per_layer(policy, dict(zip(layers, map(int, old[2].split(",")), strict=True)))
            )
    return upgraded
