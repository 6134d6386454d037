"""A staircase at work on a live model: every step takes the costs measured for its number of rows."""

import pytest
import staircase_files
import torch
from model_probes import check, dense, watched
from tiny_models import generate, num_experts, prompts

import xshare
from xshare.engines.transformers import layer as engine
from xshare.engines.transformers.routers import find_routers, staircase_conditions
from xshare.errors import PolicyError
from xshare.policy import Policy
from xshare.staircase import StairsError, read_stairs

EDGES = {3: (5, 9), 5: (7, 12), 8: (6, 10, 14)}
POLICIES = ["k0=0,lam=0.3,p=2", "k0=1,m=1", "k0=2,m=0", "k0=0,rho=0.6"]


@pytest.fixture
def file(tiny, tmp_path):
    return staircase_files.write(tmp_path / "stairs.json", staircase_conditions(*with_routers(tiny("qwen3"))), EDGES)


def with_routers(model):
    return model, find_routers(model)[1]


@pytest.fixture(params=["compiled", "reference"])
def both(request, monkeypatch):
    if request.param == "reference":
        monkeypatch.setattr(engine.cpu, "serves", lambda *args: False)


def cost_of(stairs, rows):
    table = stairs.table_for(rows)
    return None if table is None else stairs.costs[table].tolist()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("batch", [2, 4, 7, 9])
def test_a_step_takes_the_table_of_its_rows(tiny, file, both, policy, batch):
    model, stairs = tiny("qwen3"), read_stairs(file)
    assert (stairs.table_for(batch) is None) == (batch == 9)
    with watched(model) as steps:
        attached = xshare.apply(model, policy, cost=str(file), bypass=False)
        generate(model, prompts(batch), new=5)
        assert attached.stats()["cost"]
        xshare.remove(model)
    acted = [step for step in steps if step.acted]
    assert len(acted) == 4
    for step in acted:
        check(model, step, list(range(batch)), policy, cost_of(stairs, batch))


def test_what_was_read_will_do_and_without_one_nothing_is_weighed(tiny, file):
    model, stairs = tiny("qwen3"), read_stairs(file)
    selected = {}
    for cost in (None, file, stairs):
        attached = xshare.apply(model, "k0=1,m=1", cost=cost, bypass=False)
        generate(model, prompts(6), new=5)
        selected[str(type(cost))] = attached.stats()["experts_selected"]
        assert attached.stats()["cost"] == (cost is not None)
        xshare.remove(model)
    plain, path, read = selected.values()
    assert path == read
    assert sum(path) > sum(plain)


@pytest.mark.parametrize("policy", POLICIES)
def test_steps_of_one_pass_take_each_its_own(tiny, file, both, policy):
    """Teacher forcing: six sequences end one after another, and some step has no row at all."""
    model, stairs = tiny("qwen3"), read_stairs(file)
    tokens = prompts(6, length=5)
    requests = torch.arange(6).repeat(5, 1)
    for position, count in enumerate((6, 4, 2, 0, 5)):
        requests[position, count:] = -1
    with watched(model) as passes:
        xshare.apply(model, policy, cost=stairs, bypass=False)
        with xshare.layout(model, xshare.BatchLayout(requests)):
            model(input_ids=tokens)
        xshare.remove(model)
    N, spec = num_experts(model), find_routers(model)[1][0].spec()
    for routed in passes[-1].layers:
        for step, own in enumerate(requests):
            rows = [sequence * 5 + step for sequence in range(6)]
            cost = cost_of(stairs, int((own >= 0).sum())) if (own >= 0).any() else None
            layout = xshare.BatchLayout(own.tolist())
            wanted = xshare.route(routed.logits[rows], spec, policy, layout=layout, cost=cost)
            ids, weights = (used[rows] for used in routed.used)
            torch.testing.assert_close(
                dense(ids, weights, N), dense(wanted.ids, wanted.weights, N), rtol=1e-5, atol=1e-6
            )


def test_the_staircase_of_another_place_is_refused(tiny, file, tmp_path):
    model = tiny("qwen3")
    for other, message in (
        ({"engine": "vllm"}, "was measured with engine 'vllm', and here it is 'transformers'"),
        ({"device": "cuda:0"}, "was measured with device 'cuda:0', and here it is 'cpu'"),
        ({"config": "another"}, "was measured with config 'another'"),
        ({"version": "4.0"}, "was measured with version '4.0', and here it is '5"),
        ({"cpu": "another"}, "was measured with cpu 'another', and here it is '"),
    ):
        path = staircase_files.write(tmp_path / "other.json", staircase_conditions(*with_routers(model)) | other, EDGES)
        with pytest.raises(StairsError, match=message):
            xshare.apply(model, "k0=1", cost=path)
    with pytest.raises(StairsError, match="was measured with layers 2, and here it is 1"):
        xshare.apply(model, "k0=1", cost=file, layers=[0])
    with pytest.raises(StairsError, match="does not exist or is not a file"):
        xshare.apply(model, "k0=1", cost="nowhere.json")
    with pytest.raises(PolicyError, match="cost is weighed by XShare's own policies, not by oea:k0=1: leave it out"):
        xshare.apply(model, Policy.parse("oea:k0=1"), cost=file)
