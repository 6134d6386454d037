"""How much two tokens agree on experts: neighbours in one text, two texts of one domain, two of different domains."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from xshare.errors import TraceError
from xshare.results import Row
from xshare.statistics import interval
from xshare.trace.batches import Ints, domains
from xshare.trace.file import Trace

PAIRS = ("consecutive", "same domain", "different domains")


def overlap(trace: Trace, pairs: int = 10_000, tops: list[int] | None = None, seed: int = 0) -> list[Row]:
    """Mean size of the intersection of two tokens' top sets, over all layers, next to what chance would give."""
    rng = np.random.default_rng(seed)
    kinds = [kind for kind in PAIRS if kind != "different domains" or len(set(trace.header.domains)) > 1]
    rows = []
    for kind in kinds:
        a, b = _pairs(trace, kind, pairs, rng)
        for top in tops or default_tops(trace):
            tops_a, tops_b = (top_sets(trace, tokens, top) for tokens in (a, b))
            shared = (tops_a.unsqueeze(-1) == tops_b.unsqueeze(-2)).sum((-2, -1)).double().mean(-1).numpy()  # [pairs]
            low, high = interval(shared)
            chance = top * top / trace.header.num_experts
            rows.append(
                {"pair": kind, "top": top, "overlap": float(shared.mean()), "overlap_low": low, "overlap_high": high}
                | {"chance": chance, "pairs": pairs}
            )
    return rows


def default_tops(trace: Trace) -> list[int]:
    """Set sizes to compare: k and larger; if a trace holds only chosen experts, k and smaller."""
    k, N = trace.header.top_k, trace.header.num_experts
    if trace.logits is None:
        return sorted({1, max(1, k // 2), k})
    return [top for top in (k, 2 * k, 4 * k) if top <= max(k, N // 2)]


def top_sets(trace: Trace, tokens: Ints, top: int) -> Tensor:
    """The `top` best experts of each token. -> int64 [tokens, layers, top]"""
    limit = trace.header.top_k if trace.logits is None else trace.header.num_experts
    if not 1 <= top <= limit:
        raise TraceError(f"top must be from 1 to {limit}, the experts a token this trace can rank, not {top}")
    index = torch.from_numpy(tokens)
    if trace.logits is None:
        assert trace.experts is not None
        return trace.experts[index][..., :top].long()
    router = trace.router()
    logits = trace.logits[index].double().transpose(0, 1)  # [layers, tokens, N], to match correction_bias
    choice = router.choice(logits, router.score(logits))
    if top <= trace.header.top_k:  # experts that are routed to, so the group rule applies
        choice = router.limit_groups(choice)
    return choice.argsort(dim=-1, descending=True, stable=True)[..., :top].transpose(0, 1)


def _pairs(trace: Trace, kind: str, count: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Token numbers of `count` random pairs, drawn until enough are of this kind."""
    lengths = trace.lengths.numpy()
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    domain = domains(trace)[1][sequence]
    drawn: list[tuple[Ints, Ints]] = []
    missing = count
    for _ in range(1000):
        a = rng.integers(0, len(sequence), size=count)
        b = np.minimum(a + 1, len(sequence) - 1) if kind == "consecutive" else rng.permutation(a)
        same_sequence, same_domain = sequence[a] == sequence[b], domain[a] == domain[b]
        fits = {
            "consecutive": same_sequence & (a != b),
            "same domain": ~same_sequence & same_domain,
            "different domains": ~same_domain,
        }[kind]
        drawn.append((a[fits][:missing], b[fits][:missing]))
        missing -= len(drawn[-1][0])
        if missing == 0:
            return np.concatenate([a for a, _ in drawn]), np.concatenate([b for _, b in drawn])
    raise TraceError(f"the trace holds no {kind} pairs of tokens: its sequences are too few or too short")
