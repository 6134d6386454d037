"""When selection acts beside decoding itself, on which layers, and that it goes with its engine."""

import threading
import time
import weakref
from collections import Counter

import pytest
import torch
from engine_probes import Recorder, check, runner_of
from tiny_vllm_models import cleaned_up, generate, prompts

from xshare.errors import PolicyError
from xshare.profile import Profile, ProfileError, model_hash

pytestmark = pytest.mark.engine

GATES = {"min_rows": 3, "max_rows": 10}
BUDGET = 17  # more than four requests of top-4


def reason(step):
    """Why a step is left alone, or None, in the words of docs/algorithms.md, section 9."""
    if not step.decoding:
        return "prefill"
    if step.rows > GATES["max_rows"]:
        return "many_rows"
    if step.rows < GATES["min_rows"]:
        return "few_rows"
    return "within_budget" if step.rows * 4 <= BUDGET else None


def test_steps_are_left_alone_for_the_reasons_given_and_counted(checkpoint, started):
    policy = f"k0=1,m={BUDGET}"
    llm = started(checkpoint("qwen3"), {"policy": policy, "gates": GATES, "layers": [1]})
    recorder = Recorder(llm)
    generate(llm, prompts(14), [3 + 2 * i for i in range(14)])  # they leave one by one
    steps = recorder.take()
    for step in steps:
        assert step.acted == (reason(step) is None)
        (routed,) = step.layers  # the first layer is not asked for, and not watched
        if step.acted:
            check(step, recorder.state.layers[0], routed, policy)
        else:
            assert torch.equal(routed.weights, routed.native[0])
            assert torch.equal(routed.ids, routed.native[1])
    counted = Counter(map(reason, steps))
    assert all(counted[why] for why in ("prefill", "many_rows", "few_rows", "within_budget", None))
    (stats,) = llm.collective_rpc("xshare_stats")
    assert stats["layers"] == ["model.layers.1.mlp.experts"]
    assert stats["steps_pruned"] == counted.pop(None)
    assert stats["steps_bypassed"] == counted


def check_budgets(recorder, budgets):
    """Every layer kept to its own m, at every step that was acted on."""
    acted = [step for step in recorder.take() if step.acted]
    assert acted
    for step in acted:
        for layer, routed, m in zip(recorder.state.layers, step.layers, budgets, strict=True):
            check(step, layer, routed, f"k0=1,m={m}")


def test_an_engine_that_has_gone_leaves_nothing_behind(checkpoint, started):
    others = threading.enumerate()
    llm = started(checkpoint("qwen3"), {"policy": "k0=1,m=2", "metrics": {"interval": 0.2}})
    generate(llm, prompts(4))
    left = [weakref.ref(runner_of(llm).xshare), weakref.ref(runner_of(llm).get_model())]
    (reporter,) = (
        thread for thread in threading.enumerate() if thread.name == "xshare-metrics" and thread not in others
    )
    del llm
    for _ in range(5):  # the reporter may just be reading the figures
        cleaned_up()
        time.sleep(0.2)
    assert [ref() for ref in left] == [None, None]
    reporter.join(5)
    assert not reporter.is_alive()
    assert not reporter.path.exists()


@pytest.fixture(scope="module")
def toy(checkpoint, tmp_path_factory):
    """A model's folder, and a function that writes a profile for it: settings that name it."""
    from transformers import AutoConfig

    path, folder = checkpoint("qwen3"), tmp_path_factory.mktemp("profiles")
    about = {"format": 2, "model": "toy", "policy": "k0=1,m=0", "measured": {}, "versions": {}}
    right = {"config": model_hash(AutoConfig.from_pretrained(path))}

    def profile(name, **fields):
        Profile(**(about | right | fields)).save(folder / name)
        return {"profile": str(folder / name)}

    return path, profile


@pytest.fixture(scope="module")
def profiled(toy, started):
    """An engine with a profile, and its one recorder: a second would hide what experts that route by themselves do."""
    path, profile = toy
    llm = started(path, profile("good.yaml", budgets=[1, 6]))  # as before layer_budgets
    return llm, Recorder(llm)


def test_a_profile_is_served(profiled):
    llm, recorder = profiled
    generate(llm, prompts(8))
    check_budgets(recorder, (1, 6))


def test_a_budget_for_each_layer(profiled):
    llm, recorder = profiled

    def change(policy):
        (changed,) = llm.collective_rpc("xshare_set", args=(policy,))
        return changed

    assert change("k0=1,m=2")
    assert change("k0=1,ml=0:1/1:6")
    assert not change({"warmup": 1, "layer_budgets": {"1": 6, "0": 1}})  # the same, as JSON has it
    assert llm.collective_rpc("xshare_stats")[0]["policy"] == "k0=1,m=0,ml=0:1/1:6"
    generate(llm, prompts(8))
    check_budgets(recorder, (1, 6))
    assert change("k0=1,m=3,ml=1:5")  # the other layer has the policy's m
    generate(llm, prompts(8))
    check_budgets(recorder, (3, 5))
    assert change("k0=1,m=1")  # one for all again
    generate(llm, prompts(8))
    check_budgets(recorder, (1, 1))


def test_a_profile_is_held_against_the_model(toy, started):
    """The last of this file: what is started here takes the place of the engine above."""
    path, profile = toy
    llm = started(path, profile("own.yaml", policy="k0=1,m=0,ml=0:2/1:5"))
    recorder = Recorder(llm)
    generate(llm, prompts(8))
    check_budgets(recorder, (2, 5))
    del llm, recorder
    with pytest.raises(ProfileError, match="the profile was made for toy"):
        started(path, profile("other.yaml", config="0" * 64))
    with pytest.raises(PolicyError, match="budgets must be 2 whole numbers"):
        started(path, profile("short.yaml", budgets=[1]))
