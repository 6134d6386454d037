"""Speculative decoding over two data-parallel ranks: drafts are rows of their request, on whichever rank it is."""

import pytest
import rank_scenes
from rank_processes import run_ranks

import xshare

pytestmark = pytest.mark.engine

POLICY, ROUTER = "k0=1,m=0,mr=2", xshare.RouterSpec.softmax(top_k=4)


@pytest.fixture(scope="module")
def ranks(checkpoint):
    return run_ranks(2, rank_scenes.drafted, checkpoint("qwen3"), {"enable_expert_parallel": True}, POLICY)


def test_the_set_has_the_budgets_of_all_requests_with_their_drafts(ranks):
    by_step, drafted = rank_scenes.together([rank[POLICY][1] for rank in ranks]), 0
    for by_rank in by_step.values():
        assert len(by_rank) == 2
        voting = [rank for rank in by_rank.values() if rank.voted]
        drafted += any(rank.starts[-1] >= len(rank.starts) for rank in voting)
        for rank in voting:
            assert rank_scenes.wanted(by_rank, ROUTER, xshare.Policy.parse(POLICY)) == rank.S
    assert drafted > 4


def test_with_a_budget_of_all_experts_tokens_are_native(ranks):
    for rank in ranks:
        assert rank["everything"][0] == rank[False][0]
        assert rank[POLICY][0] != rank[False][0]
