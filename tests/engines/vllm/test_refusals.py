"""What an engine refuses to start with: each in one sentence that names the field or the feature, and the way out."""

from types import SimpleNamespace

import pytest
from tiny_vllm_models import generate, monolithic, prompts

from xshare.engines.serving.settings import SettingsError
from xshare.engines.vllm.settings import settings_of
from xshare.errors import XShareError
from xshare.profile import Profile, model_hash

pytestmark = pytest.mark.engine

GOOD = {"warmup": 1, "batch_budget": 2}


def settings(**fields):
    return settings_of({"xshare": fields})


def one_sentence(error):
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 300
    return text


# The configuration


def test_without_the_key_there_is_nothing_to_say():
    assert settings_of({}) is None
    assert settings_of(None) is None
    assert settings_of({"other": 1}) is None


def test_the_policy_is_given_by_its_fields_or_as_a_string():
    assert settings(**GOOD).policy == settings(policy="k0=1,m=2").policy
    assert settings(policy="paper-batch").policy.batch_budget == 24


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("k0=1,m=2", "xshare in additional_config must be an object of settings, not 'k0=1,m=2'"),
        (None, "xshare in additional_config must be an object of settings, not None"),
        (
            {"batch_budgets": 2},
            "'batch_budgets' is no key of xshare: .*batch_budget.*gates, metrics, strict, one_launch, layers",
        ),
        ({"policy": "k0=1", "gate": {}}, "'gate' is no key of xshare: it takes policy, .*gates"),
        ({"warmup": 1.5}, r"warmup \(k0\) must be a valid integer, not 1.5"),
        ({"warmup": True}, r"warmup \(k0\) must be a valid integer, not True"),
        ({"warmup": 1, "batch_budget": -1}, r"batch_budget \(m\) must be greater than or equal to 0, not -1"),
        ({"mass": 1.5}, r"mass \(tau\) must be less than or equal to 1, not 1.5"),
        ({"method": "lottery"}, "method 'lottery' is unknown: expected one of xshare"),
        ({}, "policy selects nothing: at least one of k0, m, mr, mg, tau, rho and lam must be above zero"),
        ({"warmup": 1, "mass": 0.9, "batch_budget": 2}, "mass .* and batch_budget .* exclude each other"),
        ({"policy": "k0=1,m=2", "warmup": 1}, "policy in xshare must be a string .*, without other policy fields"),
        ({"policy": {"warmup": 1}}, "policy in xshare must be a string such as 'rho=0.7'"),
        ({"policy": "k9=1"}, "unknown letter 'k9'"),
        (GOOD | {"gates": {"min_row": 2}}, "gates.min_row in xshare: .*not permitted"),
        (GOOD | {"gates": {"min_rows": 0}}, "gates.min_rows in xshare: .*greater than or equal to 1, not 0"),
        (GOOD | {"gates": {"max_rows": 512}}, "gates.max_rows in xshare: .*less than or equal to 256, not 512"),
        (GOOD | {"gates": {"bypass": "no"}}, "gates.bypass in xshare: .*valid boolean, not 'no'"),
        (GOOD | {"metrics": {"every": 0}}, "metrics.every in xshare: .*greater than or equal to 1, not 0"),
        (
            GOOD | {"gates": {"min_rows": 2**31}},
            "gates.min_rows in xshare: .*less than or equal to 2147483647, not 214",
        ),
        (
            GOOD | {"gates": {"max_requests": 10**30}},
            "gates.max_requests in xshare: .*less than or equal to 2147483647",
        ),
        (GOOD | {"metrics": {"every": 2**64}}, "metrics.every in xshare: .*less than or equal to 2147483647, not 1844"),
        (GOOD | {"metrics": {"interval": 1e300}}, "metrics.interval in xshare: .*less than or equal to 2147483647"),
        (
            GOOD | {"metrics": {"interval": float("inf")}},
            "metrics.interval in xshare: .*less than or equal to 2147483647",
        ),
        (
            GOOD | {"layers": [10**5000]},
            "layers.0 in xshare: .*less than or equal to 2147483647, not a number of 16610 bits",
        ),
        (
            {"warmup": 1, "batch_budget": 10**20},
            r"batch_budget \(m\) must be less than or equal to 2147483647, not 1000",
        ),
        (
            {"policy": "random:k0=1,m=2"},
            "method 'random' in xshare draws experts by lot, .*: to serve it all the same, set experiment to true",
        ),
        ({"policy": "random:k0=1,m=2", "experiment": False}, "method 'random' in xshare draws experts by lot"),
        ({"policy": "random:k0=1,m=2", "experiment": 1}, "experiment in xshare: .*valid boolean, not 1"),
        (GOOD | {"metrics": "on"}, "metrics in xshare: .*not 'on'"),
        (GOOD | {"strict": 1}, "strict in xshare: .*valid boolean, not 1"),
        (GOOD | {"layers": "all"}, "layers in xshare: .*valid list, not 'all'"),
        (GOOD | {"layers": [0.5]}, r"layers.0 in xshare: .*valid integer, not 0.5"),
        (GOOD | {"layers": []}, r"layers in xshare: .*at least 1 item"),
        (GOOD | {"layers": [3, 1]}, r"layers in xshare must be in rising order, each once, not \[3, 1\]"),
        (GOOD | {"gates": {"min_rows": 9, "max_rows": 4}}, r"gates in xshare: min_rows \(9\) must be at most max_rows"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(given, sentence):
    with pytest.raises(XShareError, match=sentence) as error:
        settings_of({"xshare": given})
    one_sentence(error)


def test_a_control_is_served_where_that_is_asked_for():
    assert settings(policy="random:k0=1,m=2", experiment=True).policy.method == "random"
    assert settings(policy="lynx:drop=2").policy.method == "lynx"


# The engine around it


def engine_with(**parallel):
    defaults = {"use_ubatching": False, "data_parallel_size": 1, "use_sequence_parallel_moe": False}
    defaults |= {"prefill_context_parallel_size": 1, "enable_expert_parallel": False, "tensor_parallel_size": 1}
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**defaults | parallel),
        model_config=SimpleNamespace(enable_sleep_mode=False),
        device_config=SimpleNamespace(device_type="cpu"),
    )


def check(config, fields=GOOD):
    from xshare.engines.vllm.compatibility import check_config

    check_config(config, settings(**fields))


@pytest.mark.parametrize(
    ("parallel", "sentence"),
    [
        ({"use_ubatching": True}, "dual batch overlap.*turn --enable-dbo off, or remove the xshare key"),
        ({"enable_elastic_ep": True}, "elastic expert parallelism.*turn --enable-elastic-ep off, or remove"),
        ({"use_sequence_parallel_moe": True}, "sequence-parallel MoE.*or remove the xshare key"),
        ({"prefill_context_parallel_size": 2}, "prefill context parallelism: set its size to 1, or remove"),
    ],
)
def test_a_feature_with_which_it_cannot_be_right_is_refused(parallel, sentence):
    check(engine_with())
    with pytest.raises(SettingsError, match=sentence) as error:
        check(engine_with(**parallel))
    one_sentence(error)


def test_data_parallel_ranks_choose_together_on_a_cpu_and_by_our_own_policies():
    check(engine_with(data_parallel_size=2))
    check(engine_with(data_parallel_size=2, enable_expert_parallel=True), {"warmup": 1, "device_budget": 2})
    with pytest.raises(SettingsError, match="method 'lynx' in xshare does not choose one set for several") as error:
        check(engine_with(data_parallel_size=2), {"policy": "lynx:drop=2"})
    one_sentence(error)


def test_data_parallel_ranks_on_gpus_are_an_experiment():
    on_gpu = engine_with(data_parallel_size=2)
    on_gpu.device_config.device_type = "cuda"
    check(on_gpu, GOOD | {"experiment": True})
    with pytest.raises(
        SettingsError, match=r"data parallel size 2 on GPUs: set experiment to true.*or remove"
    ) as error:
        check(on_gpu)
    one_sentence(error)
    with pytest.raises(SettingsError, match="cost in xshare does not go with data parallelism on GPUs") as error:
        check(on_gpu, GOOD | {"experiment": True, "cost": "stairs.json"})
    one_sentence(error)


def test_sleep_mode_and_other_devices_are_refused():
    asleep, elsewhere = engine_with(), engine_with()
    asleep.model_config.enable_sleep_mode = True
    elsewhere.device_config.device_type = "xpu"
    for config, sentence in ((asleep, "sleep mode.*or remove the xshare key"), (elsewhere, "not on xpu")):
        with pytest.raises(SettingsError, match=sentence) as error:
            check(config)
        one_sentence(error)


def test_a_policy_that_no_kernel_serves_is_refused_before_weights_are_loaded():
    on_gpu = engine_with()
    on_gpu.device_config.device_type = "cuda"
    check(on_gpu)
    with pytest.raises(SettingsError, match=r"at most 4.*or remove the xshare key") as error:
        check(on_gpu, {"warmup": 5})
    one_sentence(error)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"warmup": 1, "layer_budgets": {0: 1, 6: 2}},
            r"layer_budgets \(ml\) names layer 6, and the layers .* are 0 to 5",
        ),
        ({"coverage": 0.7, "layer_weights": {6: 2.0}}, r"layer_weights \(w\) names layer 6, and the layers"),
        (
            {"warmup": 1, "layer_budgets": {0: 1}, "layers": [1, 2]},
            "names layer 0, and the layers to act on are 1 to 2",
        ),
        (GOOD | {"layers": [5, 6]}, r"layers in xshare names \[6\], and the model has MoE layers 0 to 5"),
        (5, "the profile's budgets must be 6 whole numbers, one for each layer to act on, not"),
        (7, "the profile's budgets must be 6 whole numbers, one for each layer to act on, not"),
    ],
)
def test_layers_that_the_model_does_not_have_are_refused_before_weights_are_loaded(tmp_path, given, sentence):
    model = {"model_type": "qwen3_moe", "num_hidden_layers": 6, "mlp_only_layers": [], "decoder_sparse_step": 1}
    config = engine_with()
    config.model_config.hf_text_config = SimpleNamespace(**model)

    def profile(budgets):
        path = tmp_path / f"{budgets}.yaml"
        made_for = {"model": "toy", "config": model_hash(model), "measured": {}, "versions": {}}
        Profile(**made_for, policy="k0=1,m=2", budgets=[1] * budgets, format=2).save(path)
        return {"profile": str(path)}

    check(config, profile(6))
    check(config, profile(2) | {"layers": [0, 5]})
    with pytest.raises(XShareError, match=sentence) as error:
        check(config, profile(given) if isinstance(given, int) else given)
    one_sentence(error)


def test_batch_invariance_is_refused(monkeypatch):
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    with pytest.raises(SettingsError, match="VLLM_BATCH_INVARIANT forbids: unset it, or remove") as error:
        check(engine_with())
    one_sentence(error)


@pytest.mark.parametrize("parallel", [{}, {"enable_expert_parallel": True}, {"tensor_parallel_size": 2}])
def test_a_budget_by_device_needs_several_that_hold_experts(parallel):
    fields = {"warmup": 1, "device_budget": 2}
    check(engine_with(enable_expert_parallel=True, tensor_parallel_size=2), fields)
    with pytest.raises(SettingsError, match=r"device_budget \(mg\) in xshare needs expert parallelism") as error:
        check(engine_with(**parallel), fields)
    one_sentence(error)


@pytest.mark.parametrize("version", ["0.25.1", "0.33.0", "1.0.0", "0.3.2"])
def test_a_version_that_nobody_looked_at_is_refused(monkeypatch, version):
    monkeypatch.setattr("vllm.__version__", version)
    with pytest.raises(SettingsError, match=f"xshare knows vLLM 0.26 to 0.32, not {version}") as error:
        check(engine_with())
    one_sentence(error)


def test_a_function_whose_parameters_changed_is_named(monkeypatch):
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from xshare.engines.vllm.compatibility import check_signatures

    check_signatures(v2=False)
    with monkeypatch.context() as patched:
        patched.setattr(GPUModelRunner, "_prepare_inputs", lambda self, scheduler_output: None)
        with pytest.raises(SettingsError, match=r"_prepare_inputs of vLLM .* lacks num_scheduled_tokens") as error:
            check_signatures(v2=False)
        one_sentence(error)
        patched.delattr(GPUModelRunner, "_prepare_inputs")
        with pytest.raises(SettingsError, match=r"_prepare_inputs of vLLM .* lacks the function itself"):
            check_signatures(v2=False)


# Engines that really start, or do not


def test_a_wrong_key_stops_the_engine_before_it_loads_anything(checkpoint, started):
    with pytest.raises(XShareError, match="'budget' is no key of xshare"):
        started(checkpoint("qwen3"), {"budget": 2})


def test_a_budget_by_device_stops_an_engine_of_one_process(checkpoint, started):
    with pytest.raises(SettingsError, match="needs expert parallelism"):
        started(checkpoint("qwen3"), {"warmup": 1, "device_budget": 2})


def test_a_model_without_experts_is_refused(checkpoint, started):
    with pytest.raises(SettingsError, match="no layer to act on, because the model has no MoE layer") as error:
        started(checkpoint("llama"), GOOD)
    one_sentence(error)


def test_more_warm_up_than_experts_is_refused(checkpoint, started):
    with pytest.raises(
        SettingsError, match=r"warmup \(k0\) in xshare must be at most 8, the experts of model.layers.0"
    ):
        started(checkpoint("mixtral"), {"warmup": 9})


def test_layers_are_counted_from_zero_and_must_be_there(checkpoint, started):
    with pytest.raises(SettingsError, match=r"layers in xshare names \[2\], and the model has MoE layers 0 to 1"):
        started(checkpoint("qwen3"), GOOD | {"layers": [1, 2]})


def unknown_second_layer(monkeypatch):
    """As if the model's second MoE layer had a router that nobody knows."""
    import xshare.engines.vllm.find_layers as finding

    routers, native = [], finding.router_of

    def router_of(router):
        routers.append(router)
        return native(router) if len(routers) % 2 else "its router Strange is not known"

    monkeypatch.setattr(finding, "router_of", router_of)


def test_a_layer_it_cannot_serve_is_skipped_and_strict_refuses_it(checkpoint, started, monkeypatch):
    unknown_second_layer(monkeypatch)
    with pytest.raises(SettingsError, match=r"strict .* refuses .*layers.1.mlp.experts \(its router Strange") as error:
        started(checkpoint("qwen3"), GOOD | {"strict": True})
    one_sentence(error)
    llm = started(checkpoint("qwen3"), GOOD)
    generate(llm, prompts(8))
    (stats,) = llm.collective_rpc("xshare_stats")
    assert stats["layers"] == ["model.layers.0.mlp.experts"]
    assert stats["steps_pruned"] > 0


def test_live_control_refuses_what_it_cannot_do_and_goes_on_as_before(checkpoint, started):
    llm = started(checkpoint("qwen3"), GOOD)
    for method, value, sentence in [
        ("xshare_set", "k0=33", "warmup .* must be at most the number of experts"),
        ("xshare_set", "k0=1,m=", "should read letter=value"),
        ("xshare_set", "oea:k0=2", "method cannot change while serving, from 'xshare' to 'oea'"),
        ("xshare_set", "k0=1,m=0,mg=2", "placement is required with device_budget"),
        ("xshare_switch", "off", "xshare_switch takes True or False, not 'off'"),
    ]:
        with pytest.raises(XShareError, match=sentence):
            llm.collective_rpc(method, args=(value,))
    for more in ({"layer_budgets": {7: 1}}, {"layer_budgets": {0: -2}}, {"layer_budgets": {0: 1}, "mass": 0.9}):
        with pytest.raises(XShareError, match="layer_budgets"):
            llm.collective_rpc("xshare_set", args=({"warmup": 1} | more,))
    (stats,) = llm.collective_rpc("xshare_stats")
    assert (stats["policy"], stats["on"]) == ("k0=1,m=2", True)
    assert llm.collective_rpc("xshare_set", args=({"warmup": 2},)) == [True]
    assert llm.collective_rpc("xshare_set", args=("k0=2,m=0",)) == [False]  # the same again


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"policy": "random:k0=1,m=2", "experiment": True}, "xshare: random:k0=1,m=2 is an experiment: a rival"),
        ({"policy": "lynx:drop=2"}, "xshare: lynx:drop=2 is an experiment: a rival"),
        (GOOD, None),
    ],
)
def test_a_rival_is_called_an_experiment_at_the_start(checkpoint, started, monkeypatch, given, expected):
    if expected is not None and monolithic():
        pytest.skip("experts that route by themselves leave no place for a rival")
    warnings = []
    monkeypatch.setattr("xshare.engines.vllm.runner.log.warning", lambda text, *more: warnings.append(text % more))
    started(checkpoint("qwen3"), given)
    rivals = [text for text in warnings if "experiment" in text]
    assert len(rivals) == (expected is not None)
    assert all(text.startswith(expected) for text in rivals)


def test_an_engine_without_the_key_has_nothing_to_control(checkpoint, started):
    llm = started(checkpoint("qwen3"))
    with pytest.raises(SettingsError, match="xshare is not active in this engine"):
        llm.collective_rpc("xshare_stats")
