"""select and route against the plain-Python oracle, on random cases of every kind."""

import oracle
import pytest
import torch
from random_cases import make

import xshare


def experts(mask):
    return set(mask.nonzero().flatten().tolist())


@pytest.mark.parametrize("block", range(20))
def test_route_equals_oracle(block):
    for seed in range(block * 200, (block + 1) * 200):
        case = make(seed)
        got = xshare.route(case.tensor(), case.spec(), case.xshare_policy(), **case.keywords())
        want = case.oracle_route()
        assert got.ids.tolist() == want["ids"], seed
        assert experts(got.selected) == want["selected"], seed
        assert experts(got.active) == want["active"], seed
        assert experts(got.active_native) == want["active_native"], seed
        for name in ("mass", "smallest_kept", "top1_kept", "max_load", "excluded"):
            assert getattr(got, name).item() == pytest.approx(want[name], abs=1e-12), (seed, name)
        if not want["near_half"]:  # a share of half to the last bit may be either
            assert got.below_half.item() == pytest.approx(want["below_half"], abs=1e-12), seed
        torch.testing.assert_close(got.weights, torch.tensor(want["weights"], dtype=torch.float64), rtol=1e-9, atol=0)


@pytest.mark.parametrize("block", range(10))
def test_select_equals_oracle(block):
    for seed in range(block * 200, (block + 1) * 200):
        case = make(seed, broken=False).for_select()
        scores = case.tensor().softmax(-1).float()
        rows = scores.double().tolist()
        want = oracle.select(
            rows,
            case.N,
            choice=[dict(enumerate(row)) for row in rows],
            requests=case.requests,
            devices=case.devices,
            G=case.G,
            **case.policy,
        )
        keywords = {name: value for name, value in case.keywords().items() if name != "cost"}
        assert experts(xshare.select(scores, case.xshare_policy(), **keywords)) == want, seed


def test_routing_one_layer_needs_that_layers_policy():
    policy, rows = xshare.Policy.parse("k0=1,m=2,ml=3:5"), torch.randn(4, 16)
    with pytest.raises(xshare.PolicyError, match=r"pass policy.for_layer\(number\)"):
        xshare.route(rows, xshare.RouterSpec.softmax(4), policy)
    with pytest.raises(xshare.PolicyError, match=r"pass policy.for_layer\(number\)"):
        xshare.select(rows.softmax(-1), policy)
    for layer, m in ((3, 5), (0, 2)):
        assert policy.for_layer(layer) == xshare.Policy(warmup=1, batch_budget=m)


@pytest.mark.parametrize("given", ["balanced", "rho=0.7", {"coverage": 0.7}])
def test_a_policy_as_a_string_or_a_mapping(given):
    logits, router, policy = torch.randn(8, 16), xshare.RouterSpec.softmax(4), xshare.Policy(coverage=0.7)
    assert torch.equal(xshare.route(logits, router, given).ids, xshare.route(logits, router, policy).ids)
    scores, policy = logits.softmax(-1), xshare.Policy(warmup=1, batch_budget=3)
    assert torch.equal(xshare.select(scores, "k0=1,m=3"), xshare.select(scores, policy))
    with pytest.raises(xshare.PolicyError, match="a policy must be a string or a mapping of its fields, not 3"):
        xshare.route(logits, router, 3)
