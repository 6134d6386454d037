"""Dummy weights filled again in a running engine, and an EAGLE-3 head that drafts with them."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from tiny_vllm_models import dtype_of, generate, serves_gpt_oss
from torch import nn

from xshare.engines.vllm.dummy_roles import Role
from xshare.engines.vllm.dummy_weights import BLOCK, DRAFT_GROWTH, GROWTH, Filler, Weights, refill

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))
model_shapes = importlib.import_module("lib.model_shapes")

DRAFTS, REQUESTS = 3, 8
# Wide enough for the blocks to be told apart, as they are in 2880 dimensions.
SHAPE = model_shapes.gpt_oss_120b(4, tiny=True) | {"hidden_size": 512}


def filled(shape, role):
    module = nn.Linear(shape[1], shape[0], bias=False)
    Filler(Weights(), 1, 8 * BLOCK).fill("model.layers.0.x", module, role)
    return module.weight.detach()


def test_a_fusing_layer_takes_the_mean_of_its_streams():
    streams = torch.randn(5, 3, 16)
    fused = streams.flatten(1) @ filled((16, 48), Role("fusion")).T
    torch.testing.assert_close(fused, streams.mean(1))


def test_only_the_mlp_of_a_head_adds_much():
    draft, output = (filled((256, 256), Role(kind)).std().item() for kind in ("draft output", "output"))
    assert draft / output == pytest.approx((DRAFT_GROWTH / GROWTH) ** 0.5, rel=0.02)


@pytest.fixture(scope="module")
def llm(started, tmp_path_factory):
    if not serves_gpt_oss():
        pytest.skip("this vLLM cannot serve gpt-oss on this CPU")
    folder = tmp_path_factory.mktemp("eagle3")
    head = model_shapes.write(model_shapes.eagle3_head(SHAPE), folder / "head")
    return started(
        model_shapes.write(SHAPE, folder / "target"),
        {"warmup": 1, "batch_budget": 32, "gates": {"bypass": False}, "metrics": {"every": 1}},
        load_format="xshare_dummy",
        model_loader_extra_config={"skew": 0.345, "correlation": 0.776},
        speculative_config={"method": "eagle3", "model": str(head), "num_speculative_tokens": DRAFTS},
        dtype=dtype_of("gpt_oss"),
    )


def runner(llm):
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner


def decode(llm, patch):
    """-> drafts [proposals, DRAFTS], the tokens they follow, and the native experts of a step."""
    drafter, proposals = runner(llm).drafter, []
    native = drafter.propose

    def propose(*args, **kwargs):
        drafts = native(*args, **kwargs)
        proposals.append((kwargs["next_token_ids"].clone(), drafts.clone()))
        return drafts

    patch.setattr(drafter, "propose", propose)
    dice = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, SHAPE["vocab_size"], (REQUESTS, 8), generator=dice)
    prompts[:, -1] = torch.arange(REQUESTS) * BLOCK + 17
    llm.collective_rpc("xshare_set", args=("k0=1,m=31",))  # another policy, so that counting begins anew
    llm.collective_rpc("xshare_set", args=("k0=1,m=32",))
    generate(llm, prompts.tolist(), 16)
    experts = llm.collective_rpc("xshare_stats")[0]["experts_native"]
    last, drafts = (torch.cat([step[i] for step in proposals]) for i in (0, 1))
    return drafts, last, sum(experts) / len(experts)


@pytest.mark.engine
def test_the_head_has_the_targets_embedding_and_output(llm):
    draft, target = runner(llm).drafter.model, runner(llm).get_model()
    assert draft.lm_head is target.lm_head
    assert draft.model.embed_tokens is target.model.embedding


@pytest.mark.engine
def test_drafts_are_different_tokens_of_the_requests_block(llm, monkeypatch):
    drafts, last, _ = decode(llm, monkeypatch)
    assert len(drafts) > 30
    inside = (drafts // BLOCK == last[:, None] // BLOCK).float().mean(0)
    assert inside[0] > 0.95
    assert inside[1] > 0.8
    assert (drafts[:, 1:] != drafts[:, :-1]).float().mean() > 0.6
    assert drafts.max() < SHAPE["vocab_size"]


@pytest.mark.engine
def test_routing_changes_in_a_running_engine_and_back(llm, monkeypatch):
    *_, fitted = decode(llm, monkeypatch)
    assert llm.collective_rpc(refill, args=({"skew": 0, "correlation": 0},)) == [4]
    drafts, last, independent = decode(llm, monkeypatch)
    assert (drafts // BLOCK == last[:, None] // BLOCK).float().mean() < 0.3
    llm.collective_rpc(refill, args=({"skew": 2.0, "correlation": 0.776},))
    *_, skewed = decode(llm, monkeypatch)
    llm.collective_rpc(refill, args=({"skew": 0.345, "correlation": 0.776},))
    *_, again = decode(llm, monkeypatch)
    assert skewed + 5 < fitted < independent - 1
    assert again == fitted  # greedy: the same weights decode the same


@pytest.mark.engine
def test_an_unknown_knob_is_refused(llm):
    with pytest.raises(ValueError, match="'skw' is no key of xshare_dummy"):
        llm.collective_rpc(refill, args=({"skw": 1},))
