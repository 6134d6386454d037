"""A staircase in the real engine: what each number of experts costs decides how many are chosen. It switches live."""

import json
import logging

import pytest
import staircase_files
import torch
from engine_probes import Recorder, check
from tiny_vllm_models import generate, prompts

import xshare
from xshare.engines.serving.settings import SettingsError
from xshare.engines.vllm.settings import settings_of
from xshare.engines.vllm.stat_logger import Figures
from xshare.errors import XShareError
from xshare.profile import Profile, model_hash
from xshare.staircase import StairsError, read_stairs

pytestmark = pytest.mark.engine

EDGES = {4: (6, 11, 19), 8: (9, 15, 24), 12: (12, 18, 27)}  # steps of 13 and more rows have no table
PROMPTS = [prompts(1, length=3 + 5 * i % 19, seed=i)[0] for i in range(20)]
LENGTHS = [4 + 7 * i % 17 for i in range(20)]
POLICIES = ["k0=0,lam=0.3,p=2", "k0=1,m=2", "k0=2,m=0", "k0=0,rho=0.7", "k0=1,tau=0.7"]


def place_of(folder, **other):
    """Where the tiny Qwen3 runs in these tests."""
    config = json.loads((folder / "config.json").read_text())
    place = {"engine": "vllm", "device": "cpu", "dtype": "float32", "experts": 32, "top_k": 4, "layers": 2}
    return place | {"config": model_hash(config), "tensor_parallel": 1} | other


@pytest.fixture(scope="module")
def file(checkpoint, tmp_path_factory):
    path = tmp_path_factory.mktemp("stairs") / "stairs.json"
    return staircase_files.write(path, place_of(checkpoint("qwen3")), EDGES)


def key(file, policy="k0=1,m=2"):
    return {"policy": policy, "cost": str(file), "gates": {"bypass": False}, "metrics": {"every": 1}}


class Served:
    def __init__(self, checkpoint, started, file):
        self.llm = started(checkpoint("qwen3"), key(file), block_size=32, enable_prefix_caching=True)
        self.recorder = Recorder(self.llm)
        self.stairs = read_stairs(file)

    def rpc(self, method, *values):
        (answer,) = self.llm.collective_rpc(method, args=values)
        return answer

    def run(self, policy, cost):
        self.rpc("xshare_set", policy)
        self.rpc("xshare_cost", cost)
        self.llm.reset_prefix_cache()
        self.recorder.take()
        return generate(self.llm, PROMPTS, LENGTHS), [step for step in self.recorder.take() if step.decoding]

    def cost_of(self, step):
        table = self.stairs.table_for(step.rows)
        return None if table is None else self.stairs.costs[table].tolist()


@pytest.fixture(scope="module")
def served(checkpoint, started, file):
    serving = Served(checkpoint, started, file)
    yield serving
    serving.__dict__.clear()


@pytest.mark.parametrize("policy", POLICIES)
def test_every_step_weighs_the_costs_of_its_rows(served, policy):
    _, steps = served.run(policy, True)
    assert {served.stairs.table_for(step.rows) for step in steps} == {0, 1, 2, None}
    other = 0
    for step in steps:
        for layer, routed in zip(served.recorder.state.layers, step.layers, strict=True):
            cost, layout = served.cost_of(step), xshare.BatchLayout(step.requests)
            check(step, layer, routed, policy, cost)
            arguments = routed.logits, layer.site.router, policy
            assert routed.keep == members(xshare.route(*arguments, layout=layout, cost=cost))
            other += routed.keep != members(xshare.route(*arguments, layout=layout))
    assert other > 5  # or the tables would decide nothing


def members(routing):
    return set(routing.selected.nonzero().flatten().tolist())


def test_switched_off_and_on_again_while_it_serves(served):
    by_cost, _ = served.run("k0=0,lam=0.3,p=2", True)
    plain, steps = served.run("k0=0,lam=0.3,p=2", False)
    for step in steps:
        for layer, routed in zip(served.recorder.state.layers, step.layers, strict=True):
            check(step, layer, routed, "k0=0,lam=0.3,p=2")
    assert plain != by_cost
    assert served.run("k0=0,lam=0.3,p=2", True)[0] == by_cost
    assert served.rpc("xshare_cost", False)
    assert not served.rpc("xshare_cost", False)  # the same again
    with pytest.raises(SettingsError, match="xshare_cost takes True or False, not 'on'"):
        served.rpc("xshare_cost", "on")


def test_a_change_resets_the_prefix_cache(served, monkeypatch):
    resets = []
    patch = "vllm.v1.engine.core.EngineCore.reset_prefix_cache"
    served.rpc("xshare_cost", True)
    monkeypatch.setattr(patch, lambda *args, **options: resets.append(1) or True)
    served.rpc("xshare_cost", True)
    assert not resets
    served.rpc("xshare_cost", False)
    assert resets


def test_the_figures_say_whether_it_counts(served, tmp_path):
    served.run("k0=1,m=2", True)
    by_cost = served.rpc("xshare_stats")
    served.run("k0=1,m=2", False)
    plain = served.rpc("xshare_stats")
    assert (by_cost["cost"], plain["cost"]) == (True, False)
    assert by_cost["stairs"] == plain["stairs"] == served.stairs.sha256
    assert sum(by_cost["experts_selected"]) > sum(plain["experts_selected"])  # counted anew, and filled up
    for stats in (by_cost, plain):
        (tmp_path / "f.json").write_text(json.dumps(stats))
        values = {family.name: family.samples[0].value for family in Figures(tmp_path / "f.json", 0).collect()}
        assert values["xshare:cost"] == stats["cost"]


def test_the_log_names_the_file_at_the_start(checkpoint, started, file, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    with caplog.at_level(logging.INFO, "vllm.xshare"):
        started(checkpoint("qwen3"), key(file))
    assert f"weighed by what they cost here: {file}, in steps of up to 12 rows; in larger ones, of up to" in caplog.text
    assert "not settled" not in caplog.text


def test_a_profile_brings_its_staircase(checkpoint, started, file):
    folder, cost = checkpoint("qwen3"), {"file": file.name, "sha256": read_stairs(file).sha256}
    about = {"model": "tiny", "config": place_of(folder)["config"], "measured": {}, "versions": {}}
    Profile(format=2, policy="k0=1,m=2", cost=cost, **about).save(file.parent / "profile.yaml")
    llm = started(folder, {"profile": str(file.parent / "profile.yaml")})
    (stats,) = llm.collective_rpc("xshare_stats")
    assert (stats["cost"], stats["stairs"], stats["policy"]) == (True, cost["sha256"], "k0=1,m=2")


def test_a_compiled_graph_follows_the_switch(checkpoint, started, file, monkeypatch, tmp_path):
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    monkeypatch.setattr("torch._inductor.cpu_vec_isa.valid_vec_isa_list", list)
    tokens = {}
    for eager in (True, False):
        llm = started(checkpoint("qwen3"), key(file, "k0=0,lam=0.3,p=2"), enforce_eager=eager)
        tokens[eager] = []
        for cost in (True, False, True):
            llm.collective_rpc("xshare_cost", args=(cost,))
            tokens[eager].append(generate(llm, PROMPTS[:12], LENGTHS[:12]))
        del llm
    assert tokens[True] == tokens[False]
    assert tokens[True][0] == tokens[True][2] != tokens[True][1]


# Refusals


def one_sentence(error):
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 400


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"device": "NVIDIA H200"}, "was measured with device 'NVIDIA H200', and here it is 'cpu': measure it here"),
        ({"config": "another"}, "was measured with config 'another'"),
        ({"version": "0.1.0"}, r"was measured with version '0.1.0', and here it is '\d"),
        ({"cpu": "another"}, "was measured with cpu 'another', and here it is '"),
        ({"dtype": "bfloat16"}, "was measured with dtype 'bfloat16', and here it is 'float32'"),
        ({"engine": "transformers"}, "was measured with engine 'transformers', and here it is 'vllm'"),
        ({"tensor_parallel": 2}, "was measured with tensor parallel 2, and here it is 1"),
        ({"layers": 4}, "was measured with layers 4, and here it is 2"),
        ({"experts": 16}, "was measured with experts 16, and here it is 32"),
    ],
)
def test_the_staircase_of_another_place_is_refused(checkpoint, started, tmp_path, other, sentence):
    edges = {8: (6, 11)}
    path = staircase_files.write(tmp_path / "other.json", place_of(checkpoint("qwen3"), **other), edges)
    with pytest.raises(StairsError, match=sentence) as error:
        started(checkpoint("qwen3"), key(path))
    one_sentence(error)


def test_a_file_that_cannot_be_read_is_refused(checkpoint, started, tmp_path):
    with pytest.raises(StairsError, match=r"staircase '.*none.json' does not exist or is not a file") as error:
        started(checkpoint("qwen3"), key(tmp_path / "none.json"))
    one_sentence(error)
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(StairsError, match="must be a file that xshare doctor --stairs has written"):
        started(checkpoint("qwen3"), key(tmp_path / "bad.json"))


def test_an_engine_without_costs_has_none_to_switch(checkpoint, started):
    llm = started(checkpoint("qwen3"), {"policy": "k0=1,m=2"})
    for on in (True, False):
        with pytest.raises(SettingsError, match="needs an engine that was started with cost in its xshare key"):
            llm.collective_rpc("xshare_cost", args=(on,))
    (stats,) = llm.collective_rpc("xshare_stats")
    assert (stats["cost"], stats["stairs"]) == (False, None)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"policy": "k0=1", "cost": True}, "cost in xshare: .*valid string, not True"),
        ({"policy": "k0=1", "cost": ["a"]}, "cost in xshare: .*valid string"),
        ({"policy": "oea:k0=1", "cost": "s.json"}, "cost in xshare is weighed by XShare's own policies, not by oea"),
    ],
)
def test_a_wrong_setting_is_one_sentence(given, sentence):
    with pytest.raises(XShareError, match=sentence) as error:
        settings_of({"xshare": given})
    one_sentence(error)


def test_layers_of_different_sizes_share_no_table():
    from types import SimpleNamespace

    from xshare.engines.vllm.staircase_conditions import staircase_conditions

    model = SimpleNamespace(dtype=torch.float32, hf_text_config={})
    config = SimpleNamespace(
        model_config=model,
        parallel_config=SimpleNamespace(tensor_parallel_size=1, enable_expert_parallel=False),
        device_config=SimpleNamespace(device_type="cpu"),
    )
    layers = [SimpleNamespace(experts=number, top_k=2) for number in (8, 16)]
    with pytest.raises(SettingsError, match=r"needs layers of as many experts each, and these have \[8, 16\]"):
        staircase_conditions(config, layers)
