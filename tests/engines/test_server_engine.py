"""Servers of every kind, played by a small one: what they offer is used, and what goes wrong is one sentence."""

import time

import pytest
import staircase_files
from fake_server import played  # noqa: F401

from xshare.engines.client import Http, ServerError
from xshare.engines.counters import Stats
from xshare.engines.server import ServerEngine
from xshare.policy import Policy
from xshare.staircase import read_stairs

POLICY = Policy.parse("k0=1,m=2")
METRICS = """# HELP xshare:on Whether selection is switched on
xshare:on{engine="0",policy="k0=1,m=2"} 1.0
xshare:steps_pruned_total{engine="0"} 12.0
xshare:steps_bypassed_total{engine="0",reason="prefill"} 3.0
xshare:experts_native{engine="0",layer="0"} 10.0
xshare:experts_native{engine="0",layer="1"} 12.0
xshare:experts_active{engine="0",layer="0"} 4.0
xshare:experts_active{engine="0",layer="1"} 6.0
"""


def test_a_plain_server_is_measured_as_it_runs(played):  # noqa: F811
    engine = ServerEngine(played.url + "/v1")
    assert engine.about.record() == {
        "engine": "server", "version": None, "model": "tiny", "device": played.url, "prompt_form": "text",
        "policy": "native",
    }  # fmt: skip
    engine.use(None)
    ended = []
    run = engine.run(["one", "two", "three"], limit=5, batch=2, to_the_end=True, advance=ended.append)
    assert [answer.text for answer in run.answers] == ["w w w w w "] * 3
    assert all(len(answer.times_s) == 5 and not answer.tokens for answer in run.answers)
    assert max(gap for answer in run.answers for gap in answer.gaps_s) > 0.003  # as they come, not all at the end
    assert sum(ended) == 3
    assert played.most == 2
    assert {body["prompt"] for body in played.bodies} == {"one", "two", "three"}
    assert all(body["ignore_eos"] and "return_token_ids" not in body for body in played.bodies)
    assert engine.stats() == Stats()
    with pytest.raises(ServerError, match="nobody is told before the steps of a server, which are its own"):
        engine.run(["one"], limit=5, batch=1, before=lambda step: None)
    with pytest.raises(ServerError, match="requests can be protected by a vLLM server alone"):
        engine.run(["one"], limit=5, batch=1, protected={0})
    with pytest.raises(ServerError, match="a server's policy cannot change between two steps, which are its own"):
        engine.change(POLICY)
    with pytest.raises(ServerError, match=r"runs native and cannot be changed to k0=1,m=2: start it with VLLM_SERVER_"):
        engine.use(POLICY)
    with pytest.raises(ServerError, match="no /tokenize"):
        engine.encode("one")


def test_requests_come_when_they_are_due(played):  # noqa: F811
    run = ServerEngine(played.url).run([[1], [2]], limit=2, batch=4, arrivals=[0.6, 0.0])
    assert [answer.arrived_s for answer in run.answers] == [0.6, 0.0]
    assert run.answers[0].times_s[0] > 0.6
    assert [body["prompt"] for body in played.bodies] == [[2], [1]]


def test_a_plain_server_weighs_no_costs_that_it_was_not_started_with(played, tmp_path):  # noqa: F811
    engine = ServerEngine(played.url)
    with pytest.raises(ServerError, match=r"to weigh sets by what they cost: start it with cost, and with"):
        engine.use(None, cost=True)
    engine.use(None, cost=False)
    where = {"engine": "vllm", "experts": 16, "top_k": 4, "layers": 2}
    stairs = read_stairs(staircase_files.write(tmp_path / "stairs.json", where, {4: (6, 11)}))
    with pytest.raises(ServerError, match=r"cannot weigh sets by staircase '.*stairs.json': start it with that file"):
        ServerEngine(played.url, stairs=stairs)
    played.metrics = METRICS + 'xshare:cost{engine="0"} 1.0\n'
    assert ServerEngine(played.url).about.record()["cost"] is True


def test_metrics_say_what_runs(played):  # noqa: F811
    played.metrics = METRICS
    engine = ServerEngine(played.url, "tiny")
    engine.use(POLICY)
    with pytest.raises(ServerError, match="runs k0=1,m=2 and cannot be changed to native"):
        engine.use(None)
    stats = engine.stats()
    assert stats.steps_pruned == 12
    assert stats.steps_bypassed == {"prefill": 3}
    assert stats.mean == {"experts_native": 11, "experts_active": 5}


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("refuse", "refuses a completion: the prompt is too long"),
        ("drop", "(dropped the connection|ended a completion)"),
        ("hang", "said nothing for 0.5 s"),
        ("error", "gave up on a completion: out of memory"),
        ("end", "ended a completion after 2 tokens"),
        ("garbage", "streams what is no JSON object: '{bad'"),
    ],
)
def test_what_goes_wrong_is_one_sentence(played, how, sentence):  # noqa: F811
    played.how = how
    engine = ServerEngine(played.url, timeout=0.5 if how == "hang" else 30)
    with pytest.raises(ServerError, match=f"the server at {played.url} {sentence}"):
        engine.run(["a", "b", "c"], limit=9, batch=2)


def test_another_model_than_it_serves(played):  # noqa: F811
    with pytest.raises(ServerError, match="does not serve huge: it serves tiny"):
        ServerEngine(played.url, "huge")


def test_others_are_not_waited_for(played):  # noqa: F811
    played.how = "stall"
    began = time.monotonic()
    with pytest.raises(ServerError):
        ServerEngine(played.url).run(["b", "a", "c"], limit=9, batch=3)
    assert time.monotonic() - began < 20


def test_what_had_ended_comes_with_the_error(played):  # noqa: F811
    played.left = 2
    with pytest.raises(ServerError) as failed:
        ServerEngine(played.url).run(["a", "b", "c"], limit=3, batch=1)
    assert [answer and answer.text for answer in failed.value.answers] == ["w w w ", "w w w ", None]


@pytest.mark.parametrize("models", [[], {"data": []}, {"data": None}, {"data": ["tiny"]}])
def test_a_server_that_lists_no_models(played, models):  # noqa: F811
    played.models = models
    with pytest.raises(ServerError, match="it lists no model at /v1/models"):
        ServerEngine(played.url)


@pytest.mark.parametrize("timeout", [0, -5, "abc", True, float("inf")])
def test_a_timeout_is_a_number_of_seconds(timeout):
    with pytest.raises(ServerError, match="timeout must be a number of seconds above 0"):
        ServerEngine("http://127.0.0.1:1", timeout=timeout)


def test_a_server_that_cannot_be_set_back_is_told_and_not_left_on_what_was_tried(played, monkeypatch, capsys):  # noqa: F811
    engine, calls = ServerEngine(played.url), []

    def refuses(method, value):
        calls.append((method, value))
        return method != "xshare_set"

    monkeypatch.setattr(engine.remote, "call", refuses)
    engine.live, engine._found = True, {"policy": "k0=1,m=24", "on": True}
    engine.close()
    assert calls == [("xshare_set", "k0=1,m=24"), ("xshare_switch", False)]
    assert "could not be set back to k0=1,m=24, on" in capsys.readouterr().err


def answering(monkeypatch, answers):
    """What /collective_rpc says, by method."""
    native = Http.ask_json

    def ask_json(self, path, body=None):
        return answers[body["method"]] if path == "/collective_rpc" else native(self, path, body)

    monkeypatch.setattr("xshare.engines.client.Http.ask_json", ask_json)


def test_a_server_without_the_key_is_measured_as_it_runs(played, monkeypatch):  # noqa: F811
    answering(monkeypatch, {"xshare_stats": {"results": [{"error": "xshare is not active in this engine"}]}})
    engine = ServerEngine(played.url)
    assert not engine.live
    assert engine.about.policy == "native"


@pytest.mark.parametrize("answer", [None, {}, {"results": None}, []])
def test_a_server_that_answers_no_call_is_measured_as_it_runs(played, monkeypatch, answer):  # noqa: F811
    answering(monkeypatch, {"xshare_stats": answer})
    assert not ServerEngine(played.url).live


def test_why_a_server_refuses_is_told(played, monkeypatch):  # noqa: F811
    stats = {"policy": "k0=1,m=2", "on": True, "experts": 16, "top_k": 4, "layers": ["model.layers.0.mlp.experts"]}
    answers = {"xshare_stats": {"results": [stats]}, "xshare_set": {"results": [{"error": "k0 must be less"}]}}
    answering(monkeypatch, answers | {"xshare_switch": {"results": ["True"]}})
    engine = ServerEngine(played.url)
    assert engine.live
    with pytest.raises(ServerError, match=f"{played.url} refuses the policy k0=1,m=2: k0 must be less"):
        engine.use(POLICY)
    answers["xshare_stats"] = {"results": [{"error": "it cannot be sent"}]}
    answering(monkeypatch, answers | {"xshare_switch": {"results": ["True"]}})
    with pytest.raises(ServerError, match="no longer answers xshare_stats: it cannot be sent"):
        engine.use(None)
