"""What is refused, each by its name; most of it without SGLang."""

import json
from types import SimpleNamespace

import pytest

from xshare.engines.serving.settings import Settings, SettingsError
from xshare.engines.sglang import compatibility
from xshare.engines.sglang.protection import check_request
from xshare.engines.sglang.settings import settings_of_environment
from xshare.errors import XShareError
from xshare.policy import Policy

SETTINGS = Settings(policy=Policy(warmup=1, batch_budget=8))


@pytest.mark.parametrize("text", ["", "  "])
def test_without_the_variable_there_is_nothing(monkeypatch, text):
    monkeypatch.delenv("XSHARE", raising=False)
    assert settings_of_environment() is None
    monkeypatch.setenv("XSHARE", text)
    assert settings_of_environment() is None


def test_the_variable_holds_the_fields_that_vllms_key_takes(monkeypatch):
    fields = {"warmup": 1, "batch_budget": 24, "gates": {"min_rows": 4}, "metrics": False, "default": "exact"}
    monkeypatch.setenv("XSHARE", json.dumps(fields))
    settings = settings_of_environment()
    assert str(settings.policy) == "k0=1,m=24"
    assert (settings.gates.min_rows, settings.metrics.on, settings.default) == (4, False, "exact")
    monkeypatch.setenv("XSHARE", '{"policy": "k0=1,rho=0.7"}')
    assert str(settings_of_environment().policy) == "k0=1,rho=0.7"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"warmup": 1', "XSHARE must be a JSON object or a profile's path"),
        ('{"warm": 1}', "'warm' is no key of xshare"),
        ('{"warmup": "1"}', "warmup"),
        ('{"policy": "k0=1,m=2", "layers": [2, 1]}', "layers in xshare must be in rising order"),
        ('{"policy": "random:k0=1,m=6"}', "draws experts by lot"),
        ('{"policy": "k0=1,m=2", "gates": {"min_rows": 0}}', "gates.min_rows in xshare"),
        ("no/such/profile.yaml", "no/such/profile.yaml"),
    ],
)
def test_wrong_settings_are_refused_by_name(monkeypatch, text, says):
    monkeypatch.setenv("XSHARE", text)
    with pytest.raises(XShareError) as refused:
        settings_of_environment()
    assert says in str(refused.value)


@pytest.mark.parametrize("name", compatibility.SERVED)
def test_servers_in_which_it_would_be_wrong_are_refused(name):
    served, why = compatibility.SERVED[name]
    other = {bool: True, int: 2, str: "other", type(None): "other"}[type(served)]
    args = SimpleNamespace(device="cpu", **{name: other})
    with pytest.raises(SettingsError, match=f"xshare does not run with {name} {other!r}: {why}"):
        compatibility.check_server(args, SETTINGS)
    compatibility.check_server(SimpleNamespace(device="cpu", **{name: served}), SETTINGS)


def test_devices_and_policies_that_are_not_served_are_refused():
    with pytest.raises(SettingsError, match="on CUDA and the CPU, not on npu"):
        compatibility.check_server(SimpleNamespace(device="npu"), SETTINGS)
    devices = Settings(policy=Policy(warmup=1, device_budget=2))
    with pytest.raises(SettingsError, match=r"device_budget \(mg\) in xshare needs expert parallelism"):
        compatibility.check_server(SimpleNamespace(device="cpu", ep_size=1), devices)
    rival = Settings(policy=Policy.parse("oea:k0=2"))
    with pytest.raises(SettingsError, match="unset XSHARE"):
        compatibility.check_server(SimpleNamespace(device="cuda"), rival)


def test_prompts_read_by_compiled_graphs_are_refused():
    graphs = SimpleNamespace(prefill=SimpleNamespace(backend="tc_piecewise"))
    with pytest.raises(SettingsError, match="cuda_graph_backend_prefill 'tc_piecewise': it compiles routing"):
        compatibility.check_server(SimpleNamespace(device="cuda", cuda_graph_config=graphs), SETTINGS)
    graphs.prefill.backend = "breakable"
    compatibility.check_server(SimpleNamespace(device="cuda", cuda_graph_config=graphs), SETTINGS)


@pytest.mark.parametrize("version", ["0.5.15", "0.5.13.post1", "0.5.24", "0.6.0", "1.0"])
def test_versions_that_nobody_looked_at_are_refused(monkeypatch, version):
    monkeypatch.setattr(compatibility, "sglang_version", lambda: version)
    with pytest.raises(SettingsError, match=f"knows SGLang 0.5.16 to 0.5.23, not {version}"):
        compatibility.verification()


def asks(value=None, **more):
    params = {} if value is None else {"custom_params": {"xshare": value}}
    return SimpleNamespace(sampling_params=params, **more)


def test_requests_that_ask_for_what_they_cannot_have_are_refused():
    check_request(asks(), SETTINGS)
    check_request(asks("exact"), SETTINGS)
    check_request(asks("shared", session_params={}), SETTINGS)
    with pytest.raises(ValueError, match="must be 'exact' or 'shared', not 'native'"):
        check_request(asks("native"), SETTINGS)
    with pytest.raises(ValueError, match="extra_key must not begin with 'xshare-exact:'"):
        check_request(asks(extra_key="xshare-exact:mine"), SETTINGS)
    with pytest.raises(ValueError, match="a session must be 'shared'"):
        check_request(asks("exact", session_params={}), SETTINGS)
    with pytest.raises(ValueError, match="started with protect false"):
        check_request(asks("exact"), SETTINGS.model_copy(update={"protect": False}))
