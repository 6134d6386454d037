from dataclasses import replace

import pytest

from xshare import Policy
from xshare.errors import XShareError
from xshare.tune.candidate import Candidate, front
from xshare.tune.layers import allocate, layer_weights, prune_one_layer
from xshare.tune.scan import Scan, families, grid, layer_weight_policies


def candidate(m, active, mass):
    return Candidate(Policy(warmup=1, batch_budget=m), tuple(active), (40.0, 40.0), tuple(mass))


# In the first layer a few experts keep nearly everything; the second needs many.
FAMILY = [
    candidate(0, (10, 10), (0.90, 0.50)),
    candidate(8, (18, 18), (0.97, 0.70)),
    candidate(16, (26, 26), (0.98, 0.85)),
    candidate(32, (40, 40), (1.00, 1.00)),
]


@pytest.mark.parametrize(("target", "budgets"), [(10, [0, 0]), (18, [0, 16]), (25, [0, 32]), (40, [32, 32])])
def test_experts_go_where_they_keep_most(target, budgets):
    assert allocate(FAMILY, target) == budgets
    loaded = [next(c.active[n] for c in FAMILY if c.policy.batch_budget == m) for n, m in enumerate(budgets)]
    assert sum(loaded) / 2 <= target


def test_the_front_leaves_out_what_is_beaten():
    beaten = candidate(9, (19, 19), (0.5, 0.5))
    assert front([*FAMILY[::-1], beaten]) == FAMILY


def test_kl_goes_before_weight_where_it_is_known():
    heavy, better = (replace(member, kl=kl) for member, kl in zip(FAMILY[1:3], (0.3, 0.1), strict=True))
    light = replace(FAMILY[0], kl=0.2)
    assert front([heavy, better, light]) == [light, better]


def test_the_grid_has_all_knobs_and_both_scores():
    policies = grid(64, 4)
    assert len(set(policies)) == len(policies)
    assert {policy.warmup for policy in policies if policy.warmup} == {1, 2, 3}
    assert {policy.warmup for policy in grid(64, 2) if policy.warmup} == {1}
    assert max(policy.batch_budget for policy in policies) == 32
    assert not any(policy.request_budget for policy in policies)
    names = set(map(str, policies))
    assert {"k0=0,rho=0.7", "k0=0,lam=0.04,p=2", "k0=1,m=12,p=3", "k0=1,m=12", "k0=1,m=12,score=full"} <= names
    # Against a price every k has another: a token's k experts share its weight.
    assert {policy.price for policy in grid(64, 8) if policy.price} & {0.01}


def test_request_budgets_join_with_drafts():
    policies = grid(64, 4, drafts=3)
    more = [policy for policy in policies if policy not in grid(64, 4)]
    assert {policy.warmup for policy in more} == {1, 2}
    assert all(policy.request_budget and not policy.batch_budget for policy in more)
    assert len(policies) == len(grid(64, 4)) + len(more)


def test_families_differ_in_m_alone():
    groups = families(grid(64, 4))
    assert [len(family) for family in groups] == [6, 4]
    for family in groups:
        assert len({policy.batch_budget for policy in family}) == len(family)
        assert len({policy.model_copy(update={"batch_budget": 0}) for policy in family}) == 1


def test_layers_weigh_what_pruning_them_harms():
    kl = {0: 0.0088, 1: 0.0024, 2: 0.0019, 3: 0.0027, 4: 0.0019, 5: 0.0019}
    whole, half = layer_weights(kl, 1.0), layer_weights(kl, 0.5)
    assert whole == {0: 4.1, 1: 1.1, 2: 0.9, 3: 1.3, 4: 0.9, 5: 0.9}
    assert half == {0: 2.0, 1: 1.1, 2: 0.9, 3: 1.1, 4: 0.9, 5: 0.9}
    assert layer_weights({0: 1.0, 1: 1e-9, 2: 1e-9}, 1.0) == {0: 8.0}  # no layer takes all
    assert layer_weights({0: 0.0, 1: 0.0}, 1.0) == {}
    policies = list(layer_weight_policies({0: 1e-9, 1: 1.0, 2: 1.0}, 4))
    assert len(policies) == 16
    for policy in policies:
        policy.by_layer([0, 1, 2])  # every layer's own rho is above zero


def test_one_layer_alone():
    first, second = prune_one_layer(3, [3, 5], 16, 2).by_layer([3, 5])
    assert (first.warmup, first.batch_budget, second.batch_budget) == (2, 0, 16)


LIKE = {"batch": 2, "limit": 6}


@pytest.fixture
def prompts(engine):
    return [engine.encode(f"Compute {i} + {i}") for i in range(6)]


def test_a_scan_of_a_real_engine_covers_the_grid_and_every_layer(engine, prompts):
    done = []
    scan = Scan(engine, prompts, **LIKE, advance=done.append)
    candidates = scan.run()
    assert len(grid(16, 4)) + len(engine.about.layer_numbers) <= sum(done) <= scan.most
    assert {scanned.policy for scanned in candidates} >= set(grid(16, 4))
    for scanned in candidates:
        assert len(scanned.active) == len(scanned.mass) == 2
        assert all(a <= n + 1e-9 for a, n in zip(scanned.active, scanned.native, strict=True))
    by_layer = [scanned for scanned in candidates if scanned.policy.layer_budgets]
    assert all(scanned.name.startswith(("k0=1,m=0,p=3,ml=0:", "k0=2,m=0,p=3,ml=0:")) for scanned in by_layer)
    assert any(scanned.policy.layer_weights for scanned in candidates)
    at = {str(scanned.policy): scanned.kl for scanned in candidates}
    assert 0 <= at["k0=1,m=8"] < at["k0=1,m=0"]
    assert 0 <= at["k0=0,rho=0.9"] < at["k0=0,rho=0.5"]


def test_answers_of_one_token_leave_nothing_to_be_forced(engine, prompts, monkeypatch):
    native = engine.run
    ended = lambda *args, limit, to_the_end=False, **more: native(  # noqa: E731  every answer ends at once
        *args, limit=limit if to_the_end else 1, to_the_end=to_the_end, **more
    )
    monkeypatch.setattr(engine, "run", ended)
    candidates = Scan(engine, prompts, **LIKE).run()
    assert all(scanned.kl is None and scanned.mean_active > 0 for scanned in candidates)
    with pytest.raises(XShareError, match=r"no step of k0=0,rho=0\.5 was counted"):
        Scan(engine, prompts, batch=2, limit=1).run()


def test_what_was_looked_at_is_not_looked_at_again(engine, prompts, monkeypatch):
    saved = []
    candidates = Scan(engine, prompts, **LIKE, keep=saved.append).run()
    alone_ = [scanned for scanned in saved if scanned not in candidates]
    assert len(alone_) == len(engine.about.layer_numbers)  # single layers, to weigh them by
    more = []
    assert Scan(engine, prompts, **LIKE, known=saved[:-2], keep=more.append).run() == candidates
    assert more == saved[-2:]
    monkeypatch.setattr(engine, "run", None)  # is not asked for anything
    assert Scan(engine, prompts, **LIKE, known=saved).run() == candidates
