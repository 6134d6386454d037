"""What a change of policy does to the engine's caches and requests."""

import asyncio
import re
import shutil
import time
from types import SimpleNamespace

import pytest

from xshare.engines.serving.settings import SettingsError
from xshare.engines.vllm.control import (
    METHODS,
    add_worker_methods,
    answer_refusals,
    raise_refusals,
    reset_after_changes,
)
from xshare.engines.vllm.reporter import Reporter
from xshare.policy import Policy


def core(caching=True, connector=None, running=True, drafts=False, resets=(True,), answer=None):
    """An engine core that records its calls."""

    class Core:
        def __init__(self):
            self.calls, self.resets = [], list(resets)
            self.scheduler = SimpleNamespace(has_unfinished_requests=lambda: running)
            self.vllm_config = SimpleNamespace(
                cache_config=SimpleNamespace(enable_prefix_caching=caching),
                kv_transfer_config=connector,
                speculative_config=object() if drafts else None,
                scheduler_config=SimpleNamespace(async_scheduling=True),
            )

        def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
            self.calls.append(method)
            return [True] if answer is None else [answer]

        def reset_prefix_cache(self, **options):
            self.calls.append(options)
            outcome = self.resets.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

    reset_after_changes(Core)
    return Core()


def test_a_change_resets_the_cache_and_then_the_running_requests():
    idle, busy = core(running=False), core(resets=(False, True))
    assert idle.collective_rpc("xshare_set", args=("k0=1",)) == [True]
    assert idle.calls == ["xshare_set", {}]
    busy.collective_rpc("xshare_switch", args=(False,))
    assert busy.calls == ["xshare_switch", {}, {"reset_running_requests": True}]
    busy.collective_rpc("xshare_stats")
    assert busy.calls[3:] == ["xshare_stats"]


def test_without_a_cache_there_is_nothing_to_reset():
    engine_core = core(caching=False)
    engine_core.collective_rpc("xshare_set", args=("k0=1",))
    assert engine_core.calls == ["xshare_set"]


def test_a_cache_that_is_not_reset_is_told(monkeypatch):
    warnings = []  # vLLM keeps its loggers' records from pytest
    monkeypatch.setattr("xshare.engines.vllm.control.log.warning", lambda text, *more: warnings.append(text % more))
    engine_core = core(connector=object(), resets=(False, RuntimeError("blocks are held")))
    assert engine_core.collective_rpc("xshare_set", args=("k0=1",)) == [True]
    assert warnings[0] == "xshare: blocks are held"
    assert "the prefix cache was not reset" in warnings[1]


@pytest.mark.parametrize(("version", "refused"), [("0.26.0", True), ("0.29.0", False)])
def test_a_change_that_would_lose_tokens_is_refused_before_it_is_made(monkeypatch, version, refused):
    monkeypatch.setattr("xshare.engines.vllm.control.vllm_version", lambda: version)
    for engine_core in (core(drafts=True, running=False), core(), core(drafts=True, caching=False)):
        assert engine_core.collective_rpc("xshare_set", args=("k0=1",)) == [True]
    engine_core = core(drafts=True)
    if not refused:
        assert engine_core.collective_rpc("xshare_set", args=("k0=1",)) == [True]
        return
    (refused,) = engine_core.collective_rpc("xshare_set", None, ("k0=1",))
    assert re.search("loses tokens of requests with drafts.*wait until none is running", refused["error"])
    assert engine_core.calls == []


# What is refused


class Settled:
    """A state that has one policy, and figures that a test chooses."""

    def __init__(self):
        self.figures = {"policy": "k0=1"}

    def stats(self):
        return self.figures

    def set_policy(self, policy):
        return str(Policy.of(policy)) != "k0=1,m=0"

    def switch(self, on):
        raise SettingsError(f"xshare_switch takes True or False, not {on!r}")


def worker(state=None):
    class Worker:
        model_runner = SimpleNamespace(xshare=state)

    add_worker_methods(Worker)
    return Worker()


def test_a_worker_answers_what_it_cannot_do():
    settled_worker = worker(Settled())
    assert settled_worker.xshare_stats() == {"policy": "k0=1"}
    assert settled_worker.xshare_set("k0=2") is True
    assert settled_worker.xshare_set({"warmup": 1}) is False
    for answer, sentence in [
        (settled_worker.xshare_switch("off"), "xshare_switch takes True or False, not 'off'"),
        (settled_worker.xshare_switch(), "xshare_switch takes on: missing a required argument: 'on'"),
        (settled_worker.xshare_switch(True, False), "xshare_switch takes on: too many positional arguments"),
        (settled_worker.xshare_set(polcy="k0=1"), "xshare_set takes policy: missing a required argument: 'policy'"),
        (settled_worker.xshare_stats(1), "xshare_stats takes nothing: too many positional arguments"),
        (settled_worker.xshare_set("k0=1,m="), "policy 'k0=1,m=': 'm=' should read letter=value, as in k0=1"),
        (settled_worker.xshare_set(3), "a policy must be a string or a mapping of its fields, not 3"),
        (settled_worker.xshare_set({"self": 3}), "'self' is no field of a policy: expected one of method, "),
        (worker().xshare_stats(), "xshare is not active in this engine: start it with an xshare key"),
    ]:
        assert [*answer] == ["error"]
        assert answer["error"].startswith(sentence)
        assert "\n" not in answer["error"]


def test_an_answer_that_cannot_be_sent_is_told():
    state = Settled()
    state.figures = {"steps": 2**64}
    assert worker(state).xshare_stats()["error"].startswith("what xshare_stats has to say cannot be sent: ")


def test_a_mistake_of_ours_is_still_raised():
    class Broken(Settled):
        def stats(self):
            raise KeyError("a mistake")

    with pytest.raises(KeyError, match="a mistake"):
        worker(Broken()).xshare_stats()


def test_what_cannot_reach_a_worker_is_answered_by_the_core(monkeypatch):
    warnings = []
    monkeypatch.setattr("xshare.engines.vllm.control.log.warning", lambda text, *more: warnings.append(text % more))
    engine_core = core(caching=False)
    for call, sentence in [
        (("xshare_sett", None, (), {}), "'xshare_sett' is no method of xshare: it has xshare_set, xshare_switch, "),
        (("xshare_set", None, "k0=1", {}), "args of xshare_set must be a list, not 'k0=1'"),
        (("xshare_set", None, (), [1]), "kwargs of xshare_set must be an object, not [1]"),
        (("xshare_set", "soon", (), {}), "timeout of xshare_set must be a number of seconds, not 'soon'"),
    ]:
        (answer,) = engine_core.collective_rpc(*call)
        assert answer["error"].startswith(sentence)
        assert warnings.pop() == f"xshare: {call[0]} is refused: {answer['error']}"
    assert engine_core.calls == []
    assert engine_core.collective_rpc("others") == [True]
    for method in METHODS:
        assert engine_core.collective_rpc(method) == [True]


def test_what_is_refused_resets_nothing():
    engine_core = core(answer={"error": "no"})
    assert engine_core.collective_rpc("xshare_set", args=("k9=1",)) == [{"error": "no"}]
    assert engine_core.calls == ["xshare_set"]


class Engine:
    """What LLM and the server have of an engine: it sends a call on."""

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        return [{"error": "refused by the worker"}] if args == ("bad",) else [method]


class AsyncEngine(Engine):
    async def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        return super().collective_rpc(method, timeout, args, kwargs)


def test_in_python_a_refusal_is_raised():
    class Wrapped(Engine):
        pass

    raise_refusals(Wrapped)
    assert Wrapped().collective_rpc("xshare_set", args=("good",)) == ["xshare_set"]
    assert Wrapped().collective_rpc("others", args=("bad",)) == [{"error": "refused by the worker"}]
    with pytest.raises(SettingsError, match="refused by the worker"):
        Wrapped().collective_rpc("xshare_set", args=("bad",))


def test_over_http_a_refusal_is_an_answer():
    class Wrapped(AsyncEngine):
        pass

    answer_refusals(Wrapped)
    ask = lambda *args: asyncio.run(Wrapped().collective_rpc(*args))  # noqa: E731
    assert ask("xshare_set", None, ("good",), {}) == ["xshare_set"]
    assert ask("xshare_set", None, ("bad",), {}) == [{"error": "refused by the worker"}]
    for value in (2**70, "\ud800"):
        (answer,) = ask("xshare_count", None, (value,), {})
        assert answer["error"].startswith("what 'xshare_count' is given cannot be sent: ")


class Ranks:
    """The client of several engine cores: each has a policy, and refuses what it is told to."""

    def __init__(self, *refuses):
        self.core_engines, self.refuses, self.policies = [*range(len(refuses))], refuses, ["old"] * len(refuses)

    async def _call_utility_async(self, utility, method, timeout, args, kwargs, *, engine):
        assert utility == "collective_rpc"
        if method == "xshare_stats":
            return [{"policy": self.policies[engine]}]
        if args[0] in self.refuses[engine]:
            return [{"error": f"no {args[0]}"}]
        changed, self.policies[engine] = self.policies[engine] != args[0], args[0]
        return [changed]


@pytest.mark.parametrize(
    ("refuses", "answer", "left"),
    [
        (((), ()), [True, True], ["new", "new"]),
        ((("new",), ("new",)), [{"error": "no new"}] * 2, ["old", "old"]),
        (((), ("new",)), [{"error": "no new (some ranks refused this, so it was undone on all of them)"}], ["old"] * 2),
    ],
)
def test_a_change_reaches_the_engines_of_all_ranks_or_none(refuses, answer, left):
    class Wrapped(AsyncEngine):
        engine_core = Ranks(*refuses)

    answer_refusals(Wrapped)
    assert asyncio.run(Wrapped().collective_rpc("xshare_set", None, ("new",), {})) == answer
    assert Wrapped.engine_core.policies == left
    assert asyncio.run(Wrapped().collective_rpc("xshare_stats")) == [{"policy": policy} for policy in left]


def test_the_report_goes_on_when_its_folder_was_cleaned(tmp_path):
    class State:
        pruned = 0

        def snapshot(self):
            self.pruned += 1
            return {"policy": "k0=1", "on": True, "cost": False, "steps_pruned": self.pruned, "steps_bypassed": {}}

    state = State()
    path = tmp_path / "xshare" / "one.json"
    reporter = Reporter(state.snapshot, path, interval=0.01)
    reporter.start()
    try:
        for _ in range(2):
            deadline = time.monotonic() + 20
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert path.exists()
            shutil.rmtree(path.parent, ignore_errors=True)
    finally:
        reporter.stop()
