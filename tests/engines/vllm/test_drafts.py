"""Speculative decoding in the real engine: a request's drafts are its own rows, and its budget is its own."""

import pytest
from engine_probes import Recorder, check
from tiny_vllm_models import generate, prompts

pytestmark = pytest.mark.engine

POLICY = "k0=1,m=0,mr=2"
DRAFTS = 3
# Every second one repeats itself, so that its continuation can be looked up in it; the others seldom.
PROMPTS = [prompts(1, length=4, seed=i)[0] * (5 if i % 2 else 1) for i in range(12)]
LENGTHS = [10 + 5 * i % 12 for i in range(12)]


def drafting(started, path, **speculative):
    config = {"num_speculative_tokens": DRAFTS} | speculative
    llm = started(path, {"policy": POLICY, "gates": {"bypass": False}}, speculative_config=config)
    return llm, Recorder(llm)


def check_steps(recorder, steps):
    """Each step the policy acted on: boundaries (the recorder compares them), the set, the routing."""
    for step in steps:
        assert step.acted == step.decoding
        if step.decoding:
            for layer, routed in zip(recorder.state.layers, step.layers, strict=True):
                check(step, layer, routed, POLICY)


def test_ragged_drafts_looked_up_in_the_prompt(checkpoint, started):
    lookup = {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    llm, recorder = drafting(started, checkpoint("qwen3"), **lookup)
    generate(llm, PROMPTS, LENGTHS)
    steps = recorder.take()
    check_steps(recorder, steps)
    ragged = [step for step in steps if step.decoding and len(set(step.drafted)) > 1]
    assert len(ragged) > 3
    assert {drafts for step in ragged for drafts in step.drafted} >= {0, DRAFTS}

    llm.collective_rpc("xshare_set", args=("k0=1,m=32",))
    everything = generate(llm, PROMPTS, LENGTHS)
    llm.collective_rpc("xshare_switch", args=(False,))
    assert everything == generate(llm, PROMPTS, LENGTHS)


def test_a_drafter_that_always_drafts(checkpoint, started):
    llm, recorder = drafting(
        started, checkpoint("qwen3"), method="custom_class", model="xshare.engines.vllm.drafter.FixedDrafter"
    )
    generate(llm, PROMPTS, LENGTHS)
    steps = recorder.take()
    check_steps(recorder, steps)
    full = [step for step in steps if step.decoding and set(step.drafted) == {DRAFTS}]
    assert len(full) > 3
    assert any(step.rows == 12 * (1 + DRAFTS) for step in full)


def test_the_experts_of_a_draft_model_are_left_alone(checkpoint, started):
    llm, recorder = drafting(started, checkpoint("qwen3"), method="draft_model", model=str(checkpoint("mixtral")))
    drafter = recorder.runner.drafter.model
    routers = [module.router for module in drafter.modules() if type(module).__name__ == "MoERunner"]
    assert len(routers) == 2
    assert not any("_compute_routing" in vars(router) for router in routers)
    assert [layer.site.num_experts for layer in recorder.state.layers] == [32, 32]  # the target's, not the draft's 8
    generate(llm, PROMPTS, LENGTHS)
    steps = recorder.take()
    check_steps(recorder, steps)
    assert any(max(step.drafted) == DRAFTS for step in steps if step.decoding)
