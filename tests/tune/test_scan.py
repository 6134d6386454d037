from dataclasses import replace

import pytest

from xshare import Policy
from xshare.errors import XShareError
from xshare.tune.scan import Candidate, allocate, front, grid, looks, scan


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
    heavy, better = (replace(each, kl=kl) for each, kl in zip(FAMILY[1:3], (0.3, 0.1), strict=True))
    light = replace(FAMILY[0], kl=0.2)
    assert front([heavy, better, light]) == [light, better]


def test_the_grid_stays_below_k():
    assert {policy.warmup for policy in grid(64, 4)} == {1, 2, 3}
    assert {policy.warmup for policy in grid(64, 2)} == {1}
    assert max(policy.batch_budget for policy in grid(64, 4)) == 32
    assert not any(policy.request_budget for policy in grid(64, 4))


def test_the_other_score_for_who_asks_for_it():
    other = grid(64, 4, drafts=3, score="full")
    assert [policy.model_copy(update={"score": "topk"}) for policy in other] == grid(64, 4, drafts=3)
    by_layer = replace(FAMILY[0], policy=other[1].with_layer_budgets({0: 0, 1: 8}))
    assert by_layer.name == "k0=1,m=4,ml=0:0/1:8,score=full"


def test_request_budgets_join_with_drafts():
    found = grid(64, 4, drafts=3)
    assert found[: len(grid(64, 4))] == grid(64, 4)
    more = found[len(grid(64, 4)) :]
    assert {policy.warmup for policy in more} == {1, 2, 3}
    assert all(policy.request_budget and not policy.batch_budget for policy in more)
    assert looks(64, 4, drafts=3) == looks(64, 4) + len(more)


def test_a_real_engine(engine):
    prompts = [engine.encode(f"Compute {i} + {i}") for i in range(6)]
    done = []
    found = scan(engine, prompts, 6, done.append)
    assert sum(done) == looks(16, 4)
    assert len(found) >= len(grid(16, 4))
    for each in found:
        assert len(each.active) == len(each.mass) == 2
        assert all(a <= n + 1e-9 for a, n in zip(each.active, each.native, strict=True))
    by_layer = [each for each in found if each.policy.layer_budgets]
    assert all(each.name.startswith(("k0=1,m=0,ml=0:", "k0=2,m=0,ml=0:")) for each in by_layer)
    at = {str(each.policy): each.kl for each in found if not each.policy.layer_budgets}
    assert 0 <= at["k0=1,m=8"] < at["k0=1,m=0"]


def test_answers_of_one_token_leave_nothing_to_be_forced(engine, monkeypatch):
    prompts = [engine.encode(f"Compute {i} + {i}") for i in range(6)]
    native = engine.run
    ended = lambda *args, limit, to_the_end=False, **more: native(  # noqa: E731  every answer ends at once
        *args, limit=limit if to_the_end else 1, to_the_end=to_the_end, **more
    )
    monkeypatch.setattr(engine, "run", ended)
    found = scan(engine, prompts, 6)
    assert all(each.kl is None and each.mean_active > 0 for each in found)
    with pytest.raises(XShareError, match="no step of k0=1,m=0 was counted"):
        scan(engine, prompts, 1)


def test_what_was_looked_at_is_not_looked_at_again(engine, monkeypatch):
    prompts = [engine.encode(f"Compute {i} + {i}") for i in range(6)]
    kept = []
    found = scan(engine, prompts, 6, keep=kept.append)
    assert kept == found
    more = []
    assert scan(engine, prompts, 6, known=found[:-2], keep=more.append) == found
    assert more == found[-2:]
    monkeypatch.setattr(engine, "run", None)  # is not asked for anything
    assert scan(engine, prompts, 6, known=found) == found
