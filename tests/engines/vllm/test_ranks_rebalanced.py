"""A budget for each device while vLLM moves experts between two data-parallel ranks, some of them on both (EPLB)."""

import pytest
import rank_scenes
from rank_processes import run_ranks
from tiny_vllm_models import monolithic

import xshare

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(monolithic(), reason="this vLLM's experts route by themselves on a CPU, and know no replicas"),
]

POLICY, ROUTER = "k0=1,mg=5", xshare.RouterSpec.softmax(top_k=4)


@pytest.fixture(scope="module")
def ranks(checkpoint):
    return run_ranks(2, rank_scenes.rebalanced, checkpoint("qwen3"), POLICY)


def test_devices_are_filled_by_where_experts_are_at_that_step(ranks):
    by_step, places = rank_scenes.together([rank[POLICY][1] for rank in ranks]), set()
    for by_rank in by_step.values():
        assert len(by_rank) == 2
        if any(rank.voted for rank in by_rank.values()):
            placement = rank_scenes.places_of(by_rank)
            places.add(tuple(placement.devices.tolist()))
            S = rank_scenes.wanted(by_rank, ROUTER, xshare.Policy.parse(POLICY), placement)
            assert all(rank.S == S for rank in by_rank.values() if rank.voted)
    layers = 2
    assert len(places) >= 2 * layers  # they have moved meanwhile


def test_with_a_budget_of_all_experts_tokens_are_native(ranks):
    for rank in ranks:
        assert rank["everything"][0] == rank[False][0]
        assert rank[POLICY][0] != rank[False][0]
