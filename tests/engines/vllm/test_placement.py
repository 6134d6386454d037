"""Where experts are under expert parallelism, by vLLM's own rules."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed")

from xshare import Placement
from xshare.engines.vllm.layer import Layer
from xshare.engines.vllm.routers import placement_of

pytestmark = pytest.mark.engine


def runner_of(ep_size, strategy="linear", replicas=None, physical=None):
    eplb = None if replicas is None else SimpleNamespace(logical_to_physical_map=torch.tensor(replicas))
    manager = SimpleNamespace(ep_size=ep_size, placement_strategy=strategy)
    return SimpleNamespace(
        routed_experts=SimpleNamespace(expert_map_manager=manager),
        router=SimpleNamespace(eplb_state=eplb, global_num_experts=physical),
    )


@pytest.mark.parametrize(("experts", "ranks"), [(8, 2), (10, 4), (128, 8)])
def test_both_strategies_are_those_of_the_library(experts, ranks):
    cpu = torch.device("cpu")
    linear = placement_of(runner_of(ranks), experts, cpu)
    assert torch.equal(linear.devices, Placement.contiguous(experts, ranks).devices)
    robin = placement_of(runner_of(ranks, "round_robin"), experts, cpu)
    assert torch.equal(robin.devices, Placement.round_robin(experts, ranks).devices)


def test_without_expert_parallelism_there_is_no_placement():
    assert placement_of(runner_of(1), 8, torch.device("cpu")) is None


def test_an_expert_with_replicas_counts_where_its_first_one_is():
    # 4 experts, 6 physical places on 2 ranks of 3
    runner = runner_of(2, replicas=[[4, 0], [1, -1], [2, 5], [3, -1]], physical=6)
    assert placement_of(runner, 4, torch.device("cpu")).devices.tolist() == [1, 0, 0, 1]


def test_replicas_are_read_when_the_engine_has_moved_them_and_not_otherwise():
    runner = runner_of(2, replicas=[[4, 0], [1, -1], [2, 5], [3, -1]], physical=6)
    site = SimpleNamespace(runner=runner, placement=placement_of(runner, 4, torch.device("cpu")))
    moved = []
    layer = Layer(site, SimpleNamespace(move=lambda devices: moved.append(devices.tolist())), None, None)
    for _ in range(3):
        layer.follow_replicas()
    with torch.inference_mode():  # as in a worker
        runner.router.eplb_state.logical_to_physical_map[0].copy_(torch.tensor([0, 4]))
    for _ in range(3):
        layer.follow_replicas()
    assert moved == [[1, 0, 0, 1], [0, 0, 0, 1]]
    assert site.placement.devices.tolist() == moved[-1]
