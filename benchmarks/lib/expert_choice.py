"""How a token's experts are chosen, layer by layer: how it weighs them, and whether they come in fixed groups."""

from __future__ import annotations

import numpy as np
import torch

from xshare.results import Row
from xshare.trace import Trace
from xshare.trace.overlap import top_sets


def choice_rows(trace: Trace) -> list[Row]:
    """One row per layer:

    weights       a token's k weights, largest first, mean over tokens: all 1/k where it weighs them alike
    without_last  their sum without the last
    company       how often an expert comes with the one that most often comes with it, mean over choices: 1 in groups
    """
    N, k, rows = trace.header.num_experts, trace.header.top_k, []
    chosen = top_sets(trace, np.arange(trace.tokens), k)  # [tokens, layers, k]
    if trace.logits is None:
        assert trace.weights is not None
        weights = trace.weights.float()
    else:
        weights = trace.logits.float().topk(k).values.softmax(-1)
    for place, layer in enumerate(trace.header.layers):
        marks = torch.zeros(trace.tokens, N).scatter_(1, chosen[:, place], 1.0)
        together = (marks.T @ marks).fill_diagonal_(0)  # [N, N]: tokens that chose both
        mean = weights[:, place].mean(0).tolist()
        row: Row = {"layer": layer, "weights": mean, "without_last": sum(mean[:-1])}
        rows.append(row | {"company": float(together.amax(1).sum() / marks.sum())})
    return rows
