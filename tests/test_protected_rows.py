"""Protected rows are routed as natively, whatever the policy and whoever their neighbours; the others stay within S.

20,000 random steps of every kind of router and policy: many steps of one configuration are routed in one call.
"""

import random

import pytest
import torch

import xshare
from xshare import BatchLayout, Placement, Policy, RouterSpec
from xshare.kernels import cpu

CONFIGURATIONS, STEPS = 400, 50
POLICIES = [
    "k0=0,m={m}",
    "k0=1,m=0",
    "k0=1,m={m},p=3",
    "k0={k0},m={m},score=full",
    "k0=0,m={m},mr=2",
    "k0=1,mr=1",
    "k0=0,mg=1",
    "k0=1,mg=2,fill=rounds",
    "k0=0,mg=1,mr=1",
    "k0=0,tau=0.4",
    "k0=1,tau=0.7,mr=1",
    "k0=0,rho=0.5",
    "k0=0,m={m},rho=0.3",
    "k0=0,lam=0.8",
    "k0=1,lam=0.3,p=2,rho=0.4",
    "topk:k={k0}",
    "oea:k0={k0}",
    "lynx:drop={drop}",
    "skip:beta=0.7",
    "logit-sum:k0=0,m={m}",
    "random:k0=0,m={m}",
]
ROUTERS = ["softmax", "plain", "sigmoid", "biased", "groups", "scaled"]


def router_of(kind, k, N, rng):
    if kind in ("softmax", "plain"):
        return RouterSpec.softmax(k, renormalize=kind == "softmax")
    noise = torch.Generator().manual_seed(rng.randrange(2**31))
    bias = None if kind == "sigmoid" else torch.randn(N, generator=noise).double() * 0.5
    groups = {"n_group": 4, "topk_group": 2} if kind in ("groups", "scaled") else {}
    scale = rng.choice([0.5, 2.5, 16.0]) if kind == "scaled" else 1.0
    renormalize = rng.random() < 0.7
    return RouterSpec.sigmoid(k, correction_bias=bias, routed_scaling_factor=scale, renormalize=renormalize, **groups)


def layout_of(n, drafts, noise):
    """Requests of one row, or of a few where tokens are drafted; some rows do not vote; some requests are protected."""
    starts = torch.rand(STEPS, n, generator=noise) < (0.4 if drafts else 1.0)
    requests = starts.long().cumsum(-1)  # [steps, n]
    requests[torch.rand(STEPS, n, generator=noise) < 0.1] = -1
    chosen = torch.rand(STEPS, n + 1, generator=noise) < torch.rand(STEPS, 1, generator=noise)
    return requests, chosen.gather(-1, requests.clamp(min=0)) & (requests >= 0)


def configuration(number):
    """Policy, router, logits [steps, n, N], requests and protected rows [steps, n], placement, cost table."""
    rng = random.Random(number)
    noise = torch.Generator().manual_seed(number)
    N, k, n = rng.choice([8, 12, 20, 32]), rng.randint(1, 4), rng.choice([2, 3, 5, 8, 13])
    router = router_of(ROUTERS[number // 2 % len(ROUTERS)], k, N, rng)
    text = POLICIES[number % len(POLICIES)]
    policy = Policy.parse(
        text.format(m=rng.choice([0, 1, 3, k]) or 1, k0=rng.randint(1, k), drop=rng.randint(1, N // 2))
    )
    logits = torch.randn(STEPS, n, N, generator=noise) * rng.choice([0.5, 2.0, 6.0])
    requests, protected = layout_of(n, rng.random() < 0.5, noise)
    devices = rng.choice([1, 2, 4])
    cost = (
        torch.rand(N + 1, generator=noise).double().cumsum(0) if policy.method == "xshare" and number % 3 == 0 else None
    )
    return policy, router, logits, requests, protected, Placement.contiguous(N, devices), cost


@pytest.mark.parametrize("path", ["compiled", "reference"])
def test_protected_rows_are_native_in_random_configurations(path, monkeypatch):
    """Half of them as a CPU routes in its compiled form, half by the reference."""
    if path == "reference":
        monkeypatch.setattr(cpu.call, "installed", lambda: False)
    rows = moved = grown = 0
    for number in range(path == "reference", CONFIGURATIONS, 2):
        policy, router, logits, requests, protected, placement, cost = configuration(number)
        options = {"placement": placement, "cost": cost}
        native = xshare.route(logits, router, "native", layout=BatchLayout(requests), placement=placement)
        got = xshare.route(logits, router, policy, layout=BatchLayout(requests, protected), **options)
        case = (number, str(policy), router)
        assert torch.equal(got.ids[protected], native.ids[protected]), case
        torch.testing.assert_close(got.weights[protected], native.weights[protected], rtol=0, atol=1e-6)
        inside = got.selected.unsqueeze(1).expand(-1, requests.shape[1], -1).gather(-1, got.ids)
        assert bool(inside[requests >= 0].all()), case
        rows += int(protected.sum())
        if policy.method == "xshare" and policy.mass is None and policy.device_budget is None and cost is None:
            plain = xshare.route(logits, router, policy, layout=BatchLayout(requests), placement=placement).selected
            own = plain.sum(-1) > router.top_k  # a smaller set was topped up
            assert bool((plain <= got.selected)[own].all()), case  # the others lose nothing
            grown += int(own.sum())
        others = ~protected & (requests >= 0)
        moved += int((got.ids != native.ids).any(-1)[others].sum())
    assert rows > 10_000  # or it would prove nothing
    assert moved > 5_000
    assert grown > 1_000
