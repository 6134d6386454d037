"""select and route against the plain-Python oracle, on random cases of every kind."""

import oracle
import pytest
import torch
from cases import make

import xshare
from xshare.routing import with_budgets


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
        for name in ("mass", "top1_kept", "max_load", "excluded"):
            assert getattr(got, name).item() == pytest.approx(want[name], abs=1e-12), (seed, name)
        torch.testing.assert_close(got.weights, torch.tensor(want["weights"], dtype=torch.float64), rtol=1e-9, atol=0)


@pytest.mark.parametrize("block", range(10))
def test_select_equals_oracle(block):
    for seed in range(block * 200, (block + 1) * 200):
        case = make(seed, broken=False)
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
        assert experts(xshare.select(scores, case.xshare_policy(), **case.keywords())) == want, seed


def test_budgets_by_layer_may_not_choose_nothing():
    with pytest.raises(xshare.PolicyError, match="budgets of 0 need a warmup"):
        with_budgets(xshare.Policy.parse("k0=0,m=8"), [0, 4], 2)
    assert str(with_budgets(xshare.Policy.parse("k0=1,m=8"), [0, 4], 2)) == "k0=1,m=0"
