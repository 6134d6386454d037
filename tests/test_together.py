"""Rows in several places: the set that they choose together is the one that route() gives for all of them."""

import pytest
import torch

import xshare
from xshare.errors import PolicyError
from xshare.joint_selection import choose, size_of_votes, vote

N, PLACEMENT = 24, xshare.Placement.contiguous(24, 4)
ROUTERS = {
    "softmax": xshare.RouterSpec.softmax(top_k=4),
    "groups": xshare.RouterSpec.sigmoid(
        top_k=4, n_group=4, topk_group=2, correction_bias=torch.linspace(-0.2, 0.2, N), routed_scaling_factor=2.5
    ),
}
POLICIES = ["k0=1,m=5", "k0=1,mr=2,m=3", "k0=1,mg=3", "k0=1,mg=4,fill=rounds", "tau=0.8", "rho=0.6", "lam=0.4"]


@pytest.mark.parametrize("router", ROUTERS.values(), ids=ROUTERS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(6))
def test_the_set_is_that_of_all_rows(router, policy, seed):
    noise = torch.Generator().manual_seed(seed)
    policy, places = xshare.Policy.parse(policy), 1 + seed % 4
    cost = torch.arange(N + 1).double() // 4 * 4 if seed % 2 and policy.device_budget is None else None
    counts, parts = torch.zeros(size_of_votes(N), dtype=torch.int64), []
    for place in range(places):
        rows = int(torch.randint(0 if seed else 1, 7, (1,), generator=noise))  # a place may have none
        logits = torch.randn(rows, N, generator=noise) * 2
        requests = torch.randint(-1, 3, (rows,), generator=noise)  # -1 is padding
        protected = (torch.rand(rows, generator=noise) < 0.2) & (requests >= 0)
        if rows and seed == 3:
            logits[0, 5] = torch.nan
        votes = vote(logits, router, policy, layout=xshare.BatchLayout(requests, protected), placement=PLACEMENT)
        counts += votes.counts
        parts.append((logits, requests + 3 * place * (requests >= 0), protected, votes))
    together, requests, protected = (torch.cat([part[i] for part in parts]) for i in range(3))
    S = choose(counts, router, policy, PLACEMENT, cost)
    layout = xshare.BatchLayout(requests, protected)
    wanted = xshare.route(together, router, policy, layout=layout, placement=PLACEMENT, cost=cost)
    assert torch.equal(S, wanted.selected)
    readable = together.amax(-1).isfinite()
    ids = torch.cat([part[-1].routed(S).ids for part in parts])
    assert torch.equal(ids[readable], wanted.ids[readable])


def test_nobody_votes_and_rivals_do_not_share():
    router = ROUTERS["softmax"]
    assert choose(torch.zeros(size_of_votes(N), dtype=torch.int64), router, xshare.Policy(warmup=1)).all()
    with pytest.raises(PolicyError, match="method 'lynx' does not choose one set for rows in several places"):
        vote(torch.zeros(2, N), router, xshare.Policy.parse("lynx:drop=2"))
