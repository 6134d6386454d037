"""Data parallelism over two ranks, with expert parallelism: one set for the rows of both, whatever each does."""

import pytest
import rank_scenes
from rank_processes import run_ranks

import xshare

pytestmark = pytest.mark.engine

ROUTER, PLACEMENT = xshare.RouterSpec.softmax(top_k=4), xshare.Placement.contiguous(32, 2)
POLICIES = (rank_scenes.PRUNED, "k0=1,mr=1", "k0=1,mg=6", "rho=0.6")
OPTIONS = {"enable_expert_parallel": True}


@pytest.fixture(scope="module")
def native(checkpoint):
    return run_ranks(2, rank_scenes.native, checkpoint("qwen3"), OPTIONS)


@pytest.fixture(scope="module")
def ranks(checkpoint):
    return run_ranks(2, rank_scenes.pruned, checkpoint("qwen3"), OPTIONS, POLICIES)


def decisions(ranks, scene):
    """By step and layer; every rank has come to every one."""
    by_step = rank_scenes.together([rank[scene][1] for rank in ranks])
    assert all(len(by_rank) == 2 for by_rank in by_step.values())
    return by_step


def test_with_a_budget_of_all_experts_tokens_are_those_without_the_key(native, ranks):
    for rank, without in zip(ranks, native, strict=True):
        assert rank["everything"][0] == without


@pytest.mark.parametrize("policy", POLICIES)
def test_all_ranks_have_the_set_of_all_their_rows(ranks, native, policy):
    by_step, both = decisions(ranks, policy), 0
    for by_rank in by_step.values():
        sets = [rank.S for rank in by_rank.values() if rank.S is not None]
        assert len(sets) == sum(rank.voted for rank in by_rank.values())
        both += len(sets) == 2
        for S in sets:
            assert rank_scenes.wanted(by_rank, ROUTER, xshare.Policy.parse(policy), PLACEMENT) == S
    assert both >= 8
    assert any(ranks[rank][policy][0] != native[rank]["plain"] for rank in range(2))


def test_requests_that_come_and_go_on_one_rank_lose_nobody(ranks):
    tokens = [rank["busy"][0] for rank in ranks]
    assert [len(tokens[0][f"0-{i}"]) for i in range(6)] == [18 + i for i in range(6)]
    assert [len(tokens[1][f"1-{i}"]) for i in range(3, 6)] == [3] * 3
    kinds, policy = set(), xshare.Policy.parse(POLICIES[-1])
    for by_rank in decisions(ranks, "busy").values():
        kinds.add(tuple(by_rank[rank].S is not None for rank in range(2)))
        for S in (rank.S for rank in by_rank.values() if rank.S is not None):
            assert rank_scenes.wanted(by_rank, ROUTER, policy, PLACEMENT) == S
    # Rank 1 idles or reads prompts while rank 0 goes on; both decode; both read.
    assert kinds == {(True, False), (True, True), (False, False)}


def test_a_change_acts_when_all_ranks_have_it(ranks):
    policies = [xshare.Policy.parse(policy) for policy in (POLICIES[-1], "k0=1,m=5")]
    followed = []
    for by_rank in decisions(ranks, "changing").values():
        voting = [rank for rank in by_rank.values() if rank.voted]
        sets = [rank.S for rank in voting if rank.S is not None]
        assert not sets or (len(sets) == len(voting) and sets.count(sets[0]) == len(sets))
        if sets:
            followed.append(
                [rank_scenes.wanted(by_rank, ROUTER, policy, PLACEMENT) for policy in policies].index(sets[0])
            )
    assert followed == sorted(followed)
    assert set(followed) == {0, 1}
    for rank in ranks:
        assert rank["after"]["policy"] == "k0=1,m=5"
        assert rank["after"]["steps_bypassed"]["changing"] > 0
        assert all(len(tokens) == 22 for tokens in rank["changing"][0].values())
    assert ranks[1]["after"]["steps_bypassed"]["off"] == 3


def test_figures_count_the_set_of_all_ranks(ranks):
    for rank in ranks:
        stats = rank["stats"]
        assert stats["steps_pruned"] > 10
        for selected, load in zip(stats["experts_selected"], stats["max_load"], strict=True):
            assert selected / 2 <= load < selected


def test_a_rank_that_dies_ends_the_others(checkpoint):
    error, _ = run_ranks(2, rank_scenes.dying, checkpoint("qwen3"), OPTIONS, leaving=(1,))
    assert "remote worker" in error  # gloo's word for a connection that was closed or reset
