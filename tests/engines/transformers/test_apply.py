"""Each architecture under `generate`: decode steps route as the oracle says, everything else as the model does."""

import copy
import subprocess
import sys

import pytest
import torch
from model_probes import check, watched
from tiny_models import KINDS, generate, num_experts, prompts
from transformers import CompileConfig

import xshare

ROWS = 5
POLICY = "k0=1,m=2"


@pytest.fixture
def native(tiny):
    """A model and its tokens without xshare; afterwards it must be as it was."""
    models = []

    def get(kind):
        model = tiny(kind)
        models.append((model, hooks(model)))
        return model, generate(model, prompts(ROWS))

    yield get
    for model, before in models:
        assert hooks(model) == before
        assert "generate" not in vars(model)


def hooks(model):
    return [(list(m._forward_hooks), list(m._forward_pre_hooks), "_xshare" in vars(m)) for m in model.modules()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", [POLICY, "k0=1,m=0,mr=2", "k0=2,tau=0.6", "k0=0,m=1,score=topk"])
def test_decode_steps_route_as_the_oracle_says(native, kind, policy):
    model, tokens = native(kind)
    with watched(model) as steps:
        xshare.apply(model, policy, bypass=False)
        generate(model, prompts(ROWS))
        xshare.remove(model)
    prefill, *decoding = steps
    assert not prefill.acted
    assert all(routed.untouched for routed in prefill.layers)
    assert len(decoding) == 7
    for step in decoding:
        check(model, step, list(range(ROWS)), policy)
    if policy == POLICY:
        assert any(not routed.untouched for step in decoding for routed in step.layers)
    assert torch.equal(generate(model, prompts(ROWS)), tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_with_all_experts_every_bit_is_the_models(native, kind):
    model, tokens = native(kind)
    with watched(model) as steps:
        xshare.apply(model, {"warmup": 1, "batch_budget": num_experts(model)}, bypass=False)
        assert torch.equal(generate(model, prompts(ROWS)), tokens)
        assert xshare.stats(model)["steps_pruned"] == 7
        xshare.remove(model)
    assert all(len(routed.selected[0]) == num_experts(model) for step in steps[1:] for routed in step.layers)
    assert all(routed.untouched for step in steps for routed in step.layers)


@pytest.mark.parametrize("kind", ["gpt_oss", "qwen3", "olmoe"])  # under a group rule S may change a row it holds
def test_a_row_that_keeps_its_experts_keeps_their_bits(native, kind):
    model, _ = native(kind)
    with watched(model) as steps:
        xshare.apply(model, "k0=2,m=2")
        generate(model, prompts(ROWS))
        xshare.remove(model)
    kept = lost = 0
    for routed in (routed for step in steps if step.acted for routed in step.layers):
        (own, own_weights), (used, weights) = routed.native, routed.used
        for row, S in enumerate(routed.selected * len(own)):
            if set(own[row].tolist()) <= S:
                kept += 1
                assert torch.equal(own[row], used[row])
                assert torch.equal(own_weights[row], weights[row])
            else:
                lost += 1
                assert set(used[row].tolist()) <= S
    assert kept > 5
    assert lost > 5


@pytest.mark.parametrize("policy", ["oea:k0=2", "topk:k=2", "lynx:drop=3", "skip:beta=0.5", "random:k0=1,m=2"])
def test_rival_methods_prune_and_are_counted(native, policy):
    model, tokens = native("olmoe")
    with watched(model) as steps:
        xshare.apply(model, policy)
        pruned = generate(model, prompts(ROWS))
        stats = xshare.stats(model)
        xshare.remove(model)
    assert not torch.equal(pruned, tokens)
    assert stats["policy"] == policy
    for routed in (routed for step in steps[1:] for routed in step.layers):
        assert set(routed.used[0].flatten().tolist()) <= routed.selected[0]


def test_the_native_method_changes_no_bit(native):
    model, tokens = native("qwen2")
    handle = xshare.apply(model, "native")
    assert torch.equal(generate(model, prompts(ROWS)), tokens)
    assert handle.stats()["mean"]["mass_kept"] == 1
    xshare.remove(model)


def test_applying_again_replaces_the_policy_and_the_count(native):
    model, tokens = native("mixtral")
    xshare.apply(model, "k0=1,m=1")
    generate(model, prompts(ROWS))
    handle = xshare.apply(model, xshare.Policy(warmup=1, batch_budget=0), layers=[1])
    assert str(handle.policy) == "k0=1,m=0"
    stats = xshare.stats(model)
    assert stats["steps_pruned"] == 0
    assert stats["layers"] == ["model.layers.1.mlp.gate"]
    with watched(model) as steps:  # its hooks come after ours: the routers' results are what the experts get
        generate(model, prompts(ROWS))
    assert {len(step.layers) for step in steps} == {2}
    assert handle.stats()["layer_steps"] == [7]
    handle.switch(False)
    assert torch.equal(generate(model, prompts(ROWS)), tokens)
    assert handle.stats()["steps_bypassed"] == {"prefill": 1, "off": 8}
    xshare.remove(model)


def test_an_instance_alone_is_changed_and_a_copy_is_its_own(native):
    model, tokens = native("qwen3")
    xshare.apply(model, POLICY)
    pruned = generate(model, prompts(ROWS))
    other = copy.deepcopy(model)
    assert torch.equal(generate(other, prompts(ROWS)), pruned)
    assert xshare.stats(model)["steps_pruned"] == 7
    assert xshare.stats(other)["steps_pruned"] == 14
    xshare.remove(other)
    assert torch.equal(generate(other, prompts(ROWS)), tokens)
    assert torch.equal(generate(model, prompts(ROWS)), pruned)
    xshare.remove(model)


def test_a_decoder_without_its_head_is_pruned(native):
    model, _ = native("qwen3")
    xshare.apply(model.model, POLICY)
    with torch.inference_mode():
        out = model.model(prompts(ROWS), use_cache=True)
        model.model(prompts(ROWS)[:, :1], past_key_values=out.past_key_values)
    with torch.no_grad():  # sums of an inference_mode are added to outside it
        model.model(input_ids=prompts(ROWS)[:, :1], past_key_values=out.past_key_values)
    assert xshare.stats(model)["steps_pruned"] == 2
    xshare.remove(model)


def test_bfloat16_models_route_as_the_reference(tiny):
    model = copy.deepcopy(tiny("gpt_oss")).to(torch.bfloat16)
    tokens = generate(model, prompts(ROWS))
    with watched(model) as steps:
        xshare.apply(model, "k0=1,m=16", bypass=False)
        assert torch.equal(generate(model, prompts(ROWS)), tokens)
        xshare.apply(model, POLICY)
        generate(model, prompts(ROWS))
    for step in filter(lambda step: step.acted, steps):
        for routed in step.layers:
            assert routed.used[1].dtype == torch.bfloat16
            assert set(routed.used[0].flatten().tolist()) <= routed.selected[0]
    assert any(not routed.untouched for step in steps for routed in step.layers)


def test_a_static_cache_changes_no_token(native):
    model, _ = native("qwen3")
    xshare.apply(model, POLICY)
    pruned = generate(model, prompts(ROWS))
    assert torch.equal(generate(model, prompts(ROWS), cache_implementation="static"), pruned)
    stats = xshare.stats(model)
    assert (stats["steps_pruned"], stats["steps_bypassed"]) == (14, {"prefill": 2})
    xshare.remove(model)


def test_compiled_passes(native):
    model, tokens = native("qwen3")
    compiled = {"cache_implementation": "static", "compile_config": CompileConfig(backend="eager", mode=None)}
    compiled["compile_config"]._compile_all_devices = True  # `generate` compiles by itself on a GPU only
    assert torch.equal(generate(model, prompts(ROWS), **compiled), tokens)
    xshare.apply(model, POLICY)
    pruned = generate(model, prompts(ROWS))
    assert torch.equal(generate(model, prompts(ROWS), **compiled), pruned)
    assert not torch.equal(pruned, tokens)
    assert xshare.stats(model)["steps_pruned"] == 14
    xshare.remove(model)
    assert torch.equal(generate(model, prompts(ROWS), **compiled), tokens)


def test_importing_the_package_does_not_import_transformers():
    code = "import sys, xshare; xshare.apply; sys.exit('transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_handle_prints_what_it_does(native):
    model, _ = native("qwen3")
    handle = xshare.apply(model, "balanced")
    generate(model, prompts(ROWS))
    assert repr(handle).startswith("<XShare k0=0,rho=0.7 on Qwen3MoeForCausalLM, layers 0 to ")
    assert f"{handle.stats()['steps_pruned']} steps pruned, 1 left alone>" in repr(handle)
    handle.switch(False)
    assert "switched off" in repr(handle)
    xshare.remove(model)
