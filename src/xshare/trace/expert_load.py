"""How a router spreads tokens over its experts, layer by layer: a healthy one uses all of them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from xshare.results import Row
from xshare.trace.file import Trace
from xshare.trace.overlap import top_sets

DEAD = 0.01  # an expert with less than this share of an even load


def shares(trace: Trace) -> NDArray[np.float64]:
    """Each expert's share of the routed slots of its layer. float64 [layers, N]; rows sum to 1"""
    chosen = top_sets(trace, np.arange(trace.tokens), trace.header.top_k)  # [tokens, layers, k]
    counts = [torch.bincount(layer.flatten(), minlength=trace.header.num_experts) for layer in chosen.unbind(1)]
    load = torch.stack(counts).double()
    share: NDArray[np.float64] = (load / load.sum(1, keepdim=True)).numpy()
    return share


def load_rows(trace: Trace) -> list[Row]:
    """One row per layer: `entropy` of the load (1 is even), share of `dead` experts, `heaviest` load in even loads."""
    N = trace.header.num_experts
    rows = []
    for layer, share in zip(trace.header.layers, shares(trace), strict=True):
        used = share[share > 0]
        entropy = float(-(used * np.log(used)).sum() / np.log(N)) if N > 1 else 1.0
        rows.append(
            {"layer": layer, "entropy": entropy, "dead": float((share < DEAD / N).mean())}
            | {"heaviest": float(share.max() * N), "load": [round(float(x * N), 4) for x in share]}
        )
    return rows
