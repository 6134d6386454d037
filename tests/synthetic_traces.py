"""Small synthetic traces, with popular experts and neighbours that resemble each other."""

import torch

from xshare import RouterSpec
from xshare.trace import Header, Trace
from xshare.trace.file import RouterFields, narrow_ids


def make_logits(tokens, layers, N, seed=0):
    noise = torch.Generator().manual_seed(seed)
    popular = torch.randn(layers, N, generator=noise)
    steps = torch.randn(tokens, layers, N, generator=noise)
    walk = steps.clone()
    for t in range(1, tokens):
        walk[t] = 0.8 * walk[t - 1] + 0.6 * steps[t]
    return (popular + 1.5 * walk).half().float()


def header(router, layers, domains, score, N):
    return Header(
        model="made-up",
        num_experts=N,
        top_k=router.top_k,
        score=score,
        router=RouterFields.of(router),
        layers=list(range(layers)),
        domains=domains,
        provenance={"made": "by a test"},
    )


LENGTHS = [9, 4, 12, 1, 7, 10, 3, 8]
DOMAINS = ["law", "law", "code", "code", "code", "maths", "maths", "law"]


def full_trace(N=12, k=3, layers=2, router=None, seed=0):
    router = router or RouterSpec.softmax(k)
    logits = make_logits(sum(LENGTHS), layers, N, seed)
    bias = None if router.scoring == "softmax" else torch.randn(layers, N, generator=torch.Generator().manual_seed(5))
    return Trace(
        header(router, layers, DOMAINS, "full", N), torch.tensor(LENGTHS), logits=logits.half(), correction_bias=bias
    )


def chosen_trace(N=12, k=3, layers=2, seed=0):
    router = RouterSpec.softmax(k)
    best = make_logits(sum(LENGTHS), layers, N, seed).topk(k)
    return Trace(
        header(router, layers, DOMAINS, "topk", N),
        torch.tensor(LENGTHS),
        experts=narrow_ids(best.indices, N),
        weights=best.values.softmax(-1).half(),
    )
