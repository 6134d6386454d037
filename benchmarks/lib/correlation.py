"""Pearson's and Spearman's correlation with bootstrap intervals over blocks of neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from xshare.results import Row

Floats = NDArray[np.float64]


def correlate(series: Sequence[Floats], blocks: int = 20, draws: int = 400, seed: int = 0) -> Row:
    """Both correlations of all pairs [n, 2] together, with intervals. Each series is resampled by blocks of neighbours:
    steps of one text are not independent."""
    rng = np.random.default_rng(seed)
    pieces = [np.array_split(pairs, min(blocks, len(pairs))) for pairs in series]
    measures: dict[str, Callable[[Floats], float]] = {"pearson": pearson, "spearman": spearman}
    drawn: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(draws):
        picked = [
            blocks_of_series[i]
            for blocks_of_series in pieces
            for i in rng.integers(len(blocks_of_series), size=len(blocks_of_series))
        ]
        for name, function in measures.items():
            drawn[name].append(function(np.concatenate(picked)))
    row: Row = {}
    for name, function in measures.items():
        low, high = np.quantile(drawn[name], [0.025, 0.975])
        row |= {name: function(np.concatenate(series)), f"{name}_low": float(low), f"{name}_high": float(high)}
    return row


def pearson(pairs: Floats) -> float:
    """Pearson's correlation; 0 where a column does not vary."""
    x, y = (pairs - pairs.mean(0)).T
    scale = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / scale if scale else 0.0


def spearman(pairs: Floats) -> float:
    return pearson(np.stack([ranks(column) for column in pairs.T], axis=1))


def ranks(values: Floats) -> Floats:
    """Ranks from 1; equal values share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_ranks: Floats = (counts.cumsum() - (counts - 1) / 2)[place]
    return mean_ranks
