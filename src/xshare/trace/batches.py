"""Batches from a trace: which tokens a decode step would have held.

A request contributes a chunk: one token, or 1 + L consecutive tokens when L drafts are verified. Rows left empty by a
short sequence or a short last batch are -1: they do not vote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from xshare.errors import TraceError
from xshare.trace.file import Trace

Mix = Literal["random", "domain", "single"]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Batches:
    tokens: Ints  # [batches, n]: token numbers in the trace, -1 for an empty row
    requests: Ints  # [batches, n]: 0 .. batch - 1, -1 for an empty row

    def __len__(self) -> int:
        return len(self.tokens)


def sampled(trace: Trace, batch: int, draft: int = 0, mix: Mix = "random", count: int = 200, seed: int = 0) -> Batches:
    """`count` random batches of different sequences, drawn in proportion to their lengths, as in a running server."""
    rng = np.random.default_rng(seed)
    lengths, starts = trace.lengths.numpy(), trace.starts
    draw = _drawer(trace, rng, mix)
    picked = np.stack([draw(batch) for _ in range(count)])  # [batches, batch] sequences
    room = np.maximum(lengths[picked] - draft, 1)
    first = starts[picked] + rng.integers(0, room)
    end = starts[picked] + lengths[picked]
    return _rows(first, end, draft)


def one_pass(trace: Trace, batch: int, draft: int = 0, mix: Mix = "random", seed: int = 0) -> Batches:
    """Every token once. The sequences lie end to end in `batch` lanes that advance together, like slots of a server.

    `mix` orders the sequences: at random, by domain (so that lanes are in different domains), or one domain at a time.
    """
    rng = np.random.default_rng(seed)
    names, domain = _domains(trace, mix)
    order = rng.permutation(len(domain))
    if mix == "single":
        passes = [order[domain[order] == d] for d in range(len(names))]
    else:
        passes = [order[np.argsort(domain[order], kind="stable")] if mix == "domain" else order]
    parts = [_lanes(trace, sequences, batch, draft) for sequences in passes]
    return Batches(np.concatenate([p.tokens for p in parts]), np.concatenate([p.requests for p in parts]))


def _lanes(trace: Trace, sequences: Ints, batch: int, draft: int) -> Batches:
    lengths, starts = trace.lengths.numpy(), trace.starts
    first = np.concatenate([np.arange(starts[s], starts[s] + lengths[s], 1 + draft) for s in sequences])
    end = np.concatenate([np.full(-(-lengths[s] // (1 + draft)), starts[s] + lengths[s]) for s in sequences])
    steps = -(-len(first) // batch)
    pad = (0, steps * batch - len(first))  # a padded chunk starts at its end: all its rows are empty
    first, end = (np.pad(x, pad).reshape(batch, steps).T for x in (first, end))
    return _rows(first, end, draft)


def _rows(first: Ints, end: Ints, draft: int) -> Batches:
    """Chunks [batches, batch] -> rows [batches, batch * (1 + draft)], empty where a chunk runs past its sequence."""
    tokens = first[..., None] + np.arange(1 + draft)
    empty = tokens >= end[..., None]
    requests = np.broadcast_to(np.arange(first.shape[1])[:, None], tokens.shape)
    shape = (len(first), -1)
    return Batches(np.where(empty, -1, tokens).reshape(shape), np.where(empty, -1, requests).reshape(shape))


def _drawer(trace: Trace, rng: np.random.Generator, mix: Mix) -> Callable[[int], Ints]:
    """A function that draws `batch` sequences, all different if there are enough."""
    lengths = trace.lengths.numpy()
    names, domain = _domains(trace, mix)

    def draw(pool: Ints, count: int) -> Ints:
        share = lengths[pool] / lengths[pool].sum()
        return rng.choice(pool, count, replace=count > len(pool), p=share)

    everything = np.arange(len(lengths))
    if mix == "random":
        return lambda batch: draw(everything, batch)
    pools = [everything[domain == d] for d in range(len(names))]
    if mix == "single":
        tokens = np.array([lengths[pool].sum() for pool in pools])
        return lambda batch: draw(pools[rng.choice(len(pools), p=tokens / tokens.sum())], batch)

    def draw_mixed(batch: int) -> Ints:  # as evenly over the domains as the batch divides
        counts = np.bincount(rng.permutation(len(pools))[np.arange(batch) % len(pools)], minlength=len(pools))
        return np.concatenate([draw(pool, count) for pool, count in zip(pools, counts, strict=True)])

    return draw_mixed


def domains(trace: Trace) -> tuple[list[str], Ints]:
    """The names of the domains, and per sequence the index of its domain."""
    names, domain = np.unique(np.array(trace.header.domains), return_inverse=True)
    return [str(name) for name in names], domain


def _domains(trace: Trace, mix: Mix) -> tuple[list[str], Ints]:
    names, domain = domains(trace)
    if mix == "domain" and len(names) < 2:
        raise TraceError(f"mix 'domain' needs a trace of at least two domains, and this one has only {names[0]!r}")
    return names, domain
