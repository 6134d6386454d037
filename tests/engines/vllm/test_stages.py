"""Pipeline parallelism: each stage acts on its own layers, all on the same steps. Layers have the model's numbers."""

import pytest
from forked_workers import forked
from tiny_vllm_models import cleaned_up, generate, monolithic, prompts

from xshare.engines.counters import over_workers
from xshare.engines.vllm.settings import SettingsError

pytestmark = [
    pytest.mark.engine,
    pytest.mark.usefixtures("time_limit"),
    pytest.mark.skipif(monolithic(), reason="up to 0.29 vLLM hangs when an engine of several workers ends in process"),
]

PROMPTS = prompts(12)
LENGTHS = [6 + i for i in range(12)]
ALL = {"gates": {"bypass": False}, "metrics": {"every": 1}}


@pytest.fixture(scope="module")
def start(checkpoint, started):
    """Starts an engine of two stages on a model of a dense layer and two MoE layers, 1 and 2."""
    running = []

    def start(partition, xshare):
        stop()
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("VLLM_PP_LAYER_PARTITION", partition)
            llm = started(
                checkpoint("partly_dense"),
                None if xshare is None else ALL | xshare,
                pipeline_parallel_size=2,
                distributed_executor_backend="mp",
                worker_extension_cls="expert_parallel_worker.Watched",
            )
        running.append(llm)
        llm.collective_rpc("make_room")
        return llm

    def stop():
        while running:
            running.pop().llm_engine.engine_core.shutdown()
            cleaned_up()

    with forked():
        yield start
        stop()


def stats(llm):
    return llm.collective_rpc("xshare_stats")


def test_a_policy_for_the_model_is_followed_by_every_stage(start):
    llm = start("2,1", {"policy": "k0=1,m=4,ml=2:1"})
    first, second = stats(llm)
    assert [stage["layers"] for stage in (first, second)] == [
        ["model.layers.1.mlp.experts"],
        ["model.layers.2.mlp.experts"],
    ]
    llm.collective_rpc("watch")
    pruned = generate(llm, PROMPTS, LENGTHS)
    decided = llm.collective_rpc("decisions")
    assert len(decided[0]) == len(decided[1]) > 10  # the same steps, each its own layer
    first, second = stats(llm)
    assert first["steps_pruned"] == second["steps_pruned"] == len(decided[0])
    assert first["steps_bypassed"] == second["steps_bypassed"]
    assert first["experts_selected"][0] > second["experts_selected"][0] + 2  # m=4, and m=1 in layer 2
    whole = over_workers([first, second])
    assert whole["layers"] == first["layers"] + second["layers"]
    assert whole["experts_active"] == first["experts_active"] + second["experts_active"]
    assert whole["expert_bytes"] == first["expert_bytes"] + second["expert_bytes"]

    # A change reaches all stages, or none.
    with pytest.raises(SettingsError, match="names layer 0, and the layers to act on are 1 to 2"):
        llm.collective_rpc("xshare_set", args=("k0=1,m=4,ml=0:1",))
    assert [stage["policy"] for stage in stats(llm)] == [first["policy"]] * 2
    llm.collective_rpc("xshare_set", args=("k0=1,m=32",))
    llm.reset_prefix_cache()
    everyone = generate(llm, PROMPTS, LENGTHS)
    assert everyone != pruned
    llm.collective_rpc("xshare_switch", args=(False,))
    assert generate(llm, PROMPTS, LENGTHS) == everyone
    assert [stage["on"] for stage in stats(llm)] == [False, False]
    start.native = everyone


def test_a_stage_without_layers_to_act_on_sees_the_same_steps(start):
    llm = start("2,1", {"policy": "k0=1,m=2", "layers": [1]})  # vLLM itself refuses stages without experts
    first, second = stats(llm)
    assert (first["layers"], second["layers"]) == ([], ["model.layers.2.mlp.experts"])
    assert generate(llm, PROMPTS, LENGTHS) != start.native
    first, second = stats(llm)
    assert first["steps_pruned"] == second["steps_pruned"] > 10
    whole = over_workers([first, second])
    assert whole["experts_active"] == second["experts_active"]
    assert (whole["experts"], whole["top_k"]) == (32, 4)


def test_tokens_are_those_of_the_same_layout_without_the_key(start):
    assert generate(start("2,1", None), PROMPTS, LENGTHS) == start.native
