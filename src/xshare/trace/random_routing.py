"""Synthetic routing, for a deployment without a trace: `random:256,8` is 256 experts, top-8.

    logit = skew popular[e] + sqrt(c) taste[sequence, e] + sqrt(1 - c) own[token, e]

popular, taste and own are standard normal. With skew = c = 0.5, routing resembles that of gpt-oss-20b
(engines/vllm/dummy_weights.py).
"""

from __future__ import annotations

import math
import re

import torch

from xshare.errors import TraceError
from xshare.router import RouterSpec
from xshare.trace.file import MOST_EXPERTS, Header, RouterFields, Trace

NAME = re.compile(r"random:(\d+),(\d+)")
SEQUENCES, TOKENS, LAYERS = 512, 4, 4
SKEW = CORRELATION = 0.5


def is_random_trace(name: str) -> bool:
    return name.startswith("random:")


def random_trace(name: str, seed: int = 0) -> Trace:
    """A trace of SEQUENCES sequences of TOKENS tokens, with logits drawn by the formula above."""
    match = NAME.fullmatch(name)
    if match is None or not 1 <= int(match[2]) <= int(match[1]) <= MOST_EXPERTS:
        raise TraceError(f"made-up routing is random:EXPERTS,TOP_K as random:256,8, not {name!r}")
    experts, top_k = int(match[1]), int(match[2])
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, LAYERS, experts, generator=generator)

    taste, own = normal(SEQUENCES, 1), normal(SEQUENCES, TOKENS)
    logits = SKEW * normal(1, 1) + math.sqrt(CORRELATION) * taste + math.sqrt(1 - CORRELATION) * own
    header = Header(
        model=name,
        num_experts=experts,
        top_k=top_k,
        score="full",
        router=RouterFields.of(RouterSpec.softmax(top_k)),
        layers=list(range(LAYERS)),
        domains=["random"] * SEQUENCES,
        provenance={"made": "up", "skew": SKEW, "correlation": CORRELATION, "seed": seed},
    )
    return Trace(header, torch.full((SEQUENCES,), TOKENS), logits=logits.flatten(0, 1).half())
