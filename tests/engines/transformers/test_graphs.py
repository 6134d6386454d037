"""Hooks as CUDA graphs: what they give is what the same functions give one kernel at a time."""

import copy

import pytest
import torch
from tiny import generate, make, prompts

import xshare
from xshare.batch import Placement
from xshare.engines.opening import open_engine
from xshare.engines.transformers.graphs import Graphs
from xshare.policy import Policy
from xshare.quality.files import built_in
from xshare.quality.measure import prompts_of

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture(autouse=True)
def same_sums():
    """The same tokens from the same steps: sums over experts in a fixed order."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(torch.cuda.is_available(), warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)


@on_gpu
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize(
    "policy", [None, "k0=1,m=6", "k0=1,m=0,mr=2", "k0=1,tau=0.7", "lynx:drop=20", "oea:k0=1", "random:m=20"]
)
def test_tokens_and_figures_are_the_same(policy, lanes, drafts):
    options = {"device": "cuda", "dtype": "bfloat16", "lanes": lanes}
    engine = open_engine("transformers", "nano", drafts=drafts, options=options)
    asked = prompts_of(engine, built_in(2, 0))
    found = []
    for graphs in (Graphs(), None):
        engine.use(policy and Policy.parse(policy))
        engine.attached.state.graphs = graphs
        run = engine.run(asked, limit=48, batch=5)
        found.append(([answer.tokens for answer in run.answers], engine.stats()))
        assert graphs is None or any(graph for _, graph in graphs.found.values())
    engine.close()
    assert found[0] == found[1]


@on_gpu
@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("kind", ["deepseek", "gpt_oss"])
def test_layers_have_their_own_bias_and_budget(kind, inference):
    model, tokens = make(kind).cuda(), prompts(4).cuda()
    xshare.apply(model, "k0=1,m=1", budgets=[1, 3], bypass=False)
    with torch.inference_mode(inference):
        ours = [generate(model, tokens[:n]).tolist() for n in (4, 4, 3, 4)]
        counted = xshare.stats(model)
        attached = xshare.apply(model, "k0=1,m=1", budgets=[1, 3], bypass=False)
        attached.state.graphs = None
        assert [generate(model, tokens[:n]).tolist() for n in (4, 4, 3, 4)] == ours
    assert xshare.stats(model) == counted


@on_gpu
def test_devices_are_balanced():
    model, tokens = make("qwen3").cuda(), prompts(6).cuda()
    attached = xshare.apply(model, "k0=1,mg=2", placement=Placement.contiguous(16, 4))
    ours = generate(model, tokens).tolist()
    attached.state.graphs = None
    assert generate(model, tokens).tolist() == ours


@on_gpu
def test_a_copy_of_the_model_has_its_own():
    model, tokens = make("qwen3").cuda(), prompts(4).cuda()
    first = xshare.apply(model, "k0=1,m=2")
    ours = generate(model, tokens)
    other = copy.deepcopy(model)
    assert torch.equal(generate(other, tokens), ours)
    second = xshare.engines.transformers.attach.attached(other)
    assert second.state.graphs is not first.state.graphs
    assert second.state.graphs.found


def test_without_a_gpu_a_function_is_called():
    graphs = Graphs()
    for turn in range(3):
        (found,) = graphs.run("twice", lambda x: (x * 2,), torch.tensor([turn]))
        assert found.tolist() == [2 * turn]
    assert not graphs.found
