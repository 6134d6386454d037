"""How far experts that stand for the same part of an MLP lie apart, layer by layer, and how tokens weigh theirs."""

from __future__ import annotations

from typing import Any

from xshare.results import Row
from xshare.trace import Trace


def copies_rows(model: Any, trace: Trace) -> list[Row]:
    """One row per layer of a mixture whose N experts are copies of an MLP in k parts, copy after copy
    (recipes/smol/upcycle.py).

    apart    how far a part's experts lie from their mean, as a share of the mean's length: 0 where they are alike
    copies   of how many copies a token's k experts are: 1 where all are of one
    weights  a token's k weights, largest first, mean over tokens: all 1/k where it weighs them alike
    without_last  their sum without the last
    """
    assert trace.logits is not None
    k, rows = trace.header.top_k, []
    for place, layer in enumerate(trace.header.layers):
        best = trace.logits[:, place].float().topk(k)  # [tokens, k]
        weights = best.values.softmax(-1).mean(0).tolist()
        parts = model.model.layers[layer].mlp.experts.down_proj.detach().float().unflatten(0, (-1, k))
        mean = parts.mean(0)  # [k, ...]
        apart = (parts - mean).flatten(2).norm(dim=-1) / mean.flatten(1).norm(dim=-1)  # [copies, k]
        copies = (best.indices // k).sort(-1).values
        distinct = 1 + (copies.diff(dim=-1) != 0).sum(-1).float().mean()
        row: Row = {"layer": layer, "apart": float(apart.mean()), "copies": float(distinct)}
        rows.append(row | {"weights": weights, "without_last": 1 - weights[-1]})
    return rows
