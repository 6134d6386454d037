"""Data-parallel ranks as they are on a GPU, in the real engine: the fused kernels, interpreted, and a collective
between their halves. What a GPU adds is the graph around them."""

import pytest
import rank_scenes
from rank_processes import run_ranks

import xshare

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

pytestmark = pytest.mark.engine

POLICIES = "k0=1,mg=6", "k0=1,m=5"
ROUTER, PLACEMENT = xshare.RouterSpec.softmax(top_k=4), xshare.Placement.contiguous(32, 2)
OPTIONS = {"enable_expert_parallel": True, "max_num_batched_tokens": 512}


@pytest.fixture(scope="module")
def ranks(checkpoint):
    return run_ranks(2, rank_scenes.short_by_kernels, checkpoint("qwen3"), OPTIONS, POLICIES[0])


def test_all_ranks_choose_the_set_of_all_their_rows(ranks):
    by_step = rank_scenes.together([rank["short"][1] for rank in ranks])
    policies, kinds, followed = [xshare.Policy.parse(text) for text in POLICIES], set(), []
    for by_rank in by_step.values():
        assert len(by_rank) == 2  # every rank comes to every layer of every step
        voting = [rank for rank in by_rank.values() if rank.voted]
        sets = [rank.S for rank in voting if rank.S is not None]
        assert not sets or (len(sets) == len(voting) and sets.count(sets[0]) == len(sets))
        kinds.add(tuple(by_rank[rank].S is not None for rank in range(2)))
        if sets:
            followed.append(
                [rank_scenes.wanted(by_rank, ROUTER, policy, PLACEMENT) for policy in policies].index(sets[0])
            )
    assert kinds == {(True, False), (True, True), (False, True), (False, False)}
    assert followed == sorted(followed)
    assert set(followed) == {0, 1}


def test_a_step_is_counted_as_the_kernels_decide(ranks):
    for rank in ranks:
        chosen = sum(decision.S is not None for decision in rank["short"][1]) // 2
        everything = sum(decision.voted for decision in rank["everything"][1]) // 2
        stats = rank["stats"]
        assert stats["steps_pruned"] == chosen + everything
        assert stats["steps_bypassed"]["changing"] == 1
        assert stats["steps_bypassed"].get("off", 0) == (1 if rank is ranks[0] else 0)


def test_no_request_is_lost(ranks):
    assert [len(tokens) for tokens in ranks[0]["short"][0].values()] == [12] * 3
    assert {name: len(tokens) for name, tokens in ranks[1]["short"][0].items()} == {"1-0": 8, "1-1": 4}
