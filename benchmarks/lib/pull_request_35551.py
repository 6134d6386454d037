"""The selection of vLLM pull request 35551, put into an engine as the pull request does it, for comparison.

Method `logit-sum` is the same rule. On a GPU the plugin's kernel runs method `xshare` only, so the rule is implemented
here in separate launches of torch: sum the raw logits, take the experts with the largest sums, mask the others. There
is no warm-up, the budget is the whole set, rows that only pad a graph are summed too, and steps of more than 48 rows
are left alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MOST_ROWS = 48


class Pruning:
    """One layer's selection. A captured graph writes the masked logits here, and `active` reads them."""

    def __init__(self, logits: Tensor, budget: int) -> None:
        self.budget = budget
        self.masked = torch.zeros(MOST_ROWS, logits.shape[1], dtype=logits.dtype, device=logits.device)
        self.lowest = torch.tensor(torch.finfo(logits.dtype).min, dtype=logits.dtype, device=logits.device)

    def __call__(self, logits: Tensor) -> Tensor:
        if len(logits) > MOST_ROWS:
            return logits
        best = logits.sum(0, dtype=torch.float32).topk(self.budget, sorted=False).indices
        keep = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device).index_fill_(0, best, True)
        return torch.where(keep, logits, self.lowest, out=self.masked[: len(logits)])

    def active(self, rows: int, top_k: int) -> int:
        """Distinct experts of the last step, which had `rows` rows."""
        return len(set(self.masked[:rows].topk(top_k).indices.flatten().tolist()))


def install(budget: int) -> list[Pruning]:
    """Prune all MoE layers of engines made from now on -> one Pruning per layer, filled when the layers first run."""
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    native = MoERunner._apply_quant_method
    by_layer: dict[int, Pruning] = {}

    def apply(self: Any, *args: Any, router_logits: Tensor, **kwargs: Any) -> Any:
        if id(self) not in by_layer:  # the engine's first run is a trial, before any graph is captured
            by_layer[id(self)] = Pruning(router_logits, budget)
            prunings.append(by_layer[id(self)])
        return native(self, *args, router_logits=by_layer[id(self)](router_logits), **kwargs)

    prunings: list[Pruning] = []
    MoERunner._apply_quant_method = apply
    return prunings
