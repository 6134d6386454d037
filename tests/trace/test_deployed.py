"""Replay over data-parallel ranks, against plain replay and against route() itself; and made-up routing."""

import numpy as np
import pytest
import torch
from synthetic_traces import chosen_trace, full_trace

import xshare
from xshare import BatchLayout, Placement, Policy
from xshare.errors import TraceError, XShareError
from xshare.trace import replay, sampled
from xshare.trace.random_routing import random_trace
from xshare.trace.replay_ranks import replay_ranks

PLACEMENT = Placement.contiguous(12, 4)


@pytest.mark.parametrize("trace", [full_trace(), chosen_trace()], ids=["full", "chosen"])
@pytest.mark.parametrize("text", ["native", "k0=1,m=2", "k0=1,mr=1", "k0=1,mg=1"])
def test_one_set_loads_what_one_rank_would(trace, text):
    policy, batches = Policy.parse(text), sampled(trace, 6, 1, "random", 20, 0)
    shared, own = replay_ranks(trace, [policy], batches, PLACEMENT, 3)
    (alone,) = replay(trace, [policy], batches, PLACEMENT)
    assert (shared.shared, own.shared) == (True, False)
    assert shared.active == pytest.approx(alone.metrics["active"].mean())
    assert shared.active_rank < shared.active
    assert shared.max_load * 4 >= shared.active
    if text == "native":
        assert own.active == shared.active
        assert own.mass == shared.mass == pytest.approx(1)
    if text == "k0=1,m=2":
        assert own.active > shared.active


def test_a_set_for_each_rank_is_route_s():
    trace, policy = full_trace(), Policy.parse("k0=1,m=1")
    batches = sampled(trace, 4, 0, "random", 10, 1)
    _, own = replay_ranks(trace, [policy], batches, PLACEMENT, 2)
    sizes, fullest = [], []
    for tokens, requests in zip(batches.tokens, batches.requests, strict=True):
        for layer in range(2):
            parts = []
            for rank in range(2):
                on_rank = requests % 2 == rank
                logits = trace.logits[torch.from_numpy(tokens[on_rank]), layer]
                layout = BatchLayout(torch.from_numpy(requests[on_rank]))
                parts.append(xshare.route(logits.float(), trace.router(), policy, layout=layout).active)
            loaded = torch.stack(parts).any(0)
            sizes.append(int(loaded.sum()))
            fullest.append(int(loaded.view(4, 3).sum(-1).max()))
    assert own.active == pytest.approx(np.mean(sizes))
    assert own.max_load == pytest.approx(np.mean(fullest))
    with pytest.raises(XShareError, match="ranks must be at most 4, the requests of a batch"):
        replay_ranks(trace, [policy], batches, PLACEMENT, 5)


def test_made_up_routing_has_popular_experts_and_requests_of_a_taste():
    trace = random_trace("random:32,4")
    (native,) = replay(trace, [Policy.parse("native")], sampled(trace, 16, 0, "random", 50, 0))
    assert 22 < native.metrics["active"].mean() < 27  # gpt-oss-20b: 23
    for name in ("random:32", "random:4,8", "random:0,0", "random:a,b"):
        with pytest.raises(TraceError, match=r"made-up routing is random:EXPERTS,TOP_K as random:256,8, not"):
            random_trace(name)
