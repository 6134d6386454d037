"""The OpenAI server with XShare: real requests, its /metrics, live control, a soak, and it as an engine that is
measured. One server serves all files test_server*: this is the last of them, and ends it."""

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from engine_contract import BENCH, PLAIN, PRUNED, assert_compared, bench, checked
from real_server import command, environment
from tiny_vllm_models import monolithic
from typer.testing import CliRunner

from xshare.cli import app
from xshare.engines.by_name import open_engine
from xshare.engines.client import ServerError
from xshare.policy import Policy

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("key")]


async def complete(client, prompt, tokens, **more):
    """One whole answer."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True} | more
    answer = await client.post("/v1/completions", json=body)
    answer.raise_for_status()
    completion = answer.json()
    assert completion["usage"]["completion_tokens"] == tokens
    return completion["choices"][0]["text"]


async def abort(client, prompt, tokens, after):
    """A client that hangs up after some tokens, or before the first."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        received = 0
        async for line in answer.aiter_lines():
            received += line.startswith("data: {")
            if received >= after:
                return


def together(server, make):
    """Run the coroutine that `make` returns for a client."""
    import httpx

    async def run():
        how = {"base_url": server.url, "timeout": 120, "headers": server.headers, "verify": False}  # plain HTTP
        async with httpx.AsyncClient(**how) as client:
            return await make(client)

    return asyncio.run(run())


def words(count, seed):
    return " ".join(f"w{random.Random(seed * 1000 + i).randrange(3, 250)}" for i in range(count))


def test_it_listens_on_the_address_it_was_given_alone(server):
    import psutil

    listening = [connection.laddr for connection in psutil.net_connections("inet") if connection.status == "LISTEN"]
    assert {address.ip for address in listening if address.port == server.port} == {"127.0.0.1"}


def test_completions_under_selection_are_answered_and_counted(server):
    before = server.settled_metrics()
    texts = together(server, lambda client: asyncio.gather(*(complete(client, words(8, i), 16 + i) for i in range(12))))
    assert len(set(texts)) > 6
    after = server.settled_metrics()
    assert after[("on", "k0=1,m=2")] == 1
    assert after[("steps_pruned_total",)] > before.get(("steps_pruned_total",), 0)
    assert after[("steps_bypassed_total", "prefill")] > before.get(("steps_bypassed_total", "prefill"), 0)
    for layer in "01":
        assert 4 <= after[("experts_active", layer)] < after[("experts_native", layer)] <= 16
        assert after[("experts_active", layer)] <= after[("experts_selected", layer)]
        assert 0 < after[("mass_kept", layer)] < 1


def test_what_the_log_says_of_it(server):
    log = server.log.read_text()
    path = "monolithic" if monolithic() else "router"
    assert f"xshare: model.layers.0.mlp.experts attached ({path} path, logits)" in log
    assert "xshare: k0=1,m=2 on 2 layers" in log
    assert "xshare: no score is named: experts are summed by each token's own weights (score=topk)" in log


def test_live_control_over_http(server):
    prompts = [words(8, i) for i in range(8)]

    def answers():
        return together(server, lambda client: asyncio.gather(*(complete(client, prompt, 12) for prompt in prompts)))

    assert server.rpc("xshare_switch", False) == "True"
    native = answers()
    assert answers() == native
    pruned = server.settled_metrics()[("steps_pruned_total",)]
    assert answers() == native
    settled = server.settled_metrics()
    assert settled[("steps_pruned_total",)] == pruned
    assert settled[("on", "k0=1,m=2")] == 0
    assert server.rpc("xshare_switch", True) == "True"
    # On a busy machine requests may come one by one, and one alone is left as it is.
    assert any(answers() != native for _ in range(10))
    assert server.settled_metrics()[("steps_pruned_total",)] > pruned


def test_what_live_control_refuses_is_an_answer_and_leaves_no_traceback(server):
    server.rpc("xshare_set", "k0=1,m=2")
    before = len(server.log.read_text())
    for body, sentence in [
        ({"method": "xshare_switch", "args": ["off"]}, "xshare_switch takes True or False, not 'off'"),
        ({"method": "xshare_switch"}, "xshare_switch takes on: missing a required argument: 'on'"),
        ({"method": "xshare_set", "args": ["k0=1", "k0=2"]}, "xshare_set takes policy: too many positional arguments"),
        ({"method": "xshare_set", "args": ["k9=1"]}, "policy 'k9=1': unknown letter 'k9'"),
        (
            {"method": "xshare_set", "args": [{"warmup": 1, "batch_budget": 10**19}]},
            "batch_budget (m) must be less than",
        ),
        ({"method": "xshare_set", "args": ["k0=1,m=" + "9" * 30]}, "batch_budget (m) must be less than or equal to 21"),
        (
            {"method": "xshare_set", "args": [{"warmup": 1, "batch_budget": 10**30}]},
            "what 'xshare_set' is given cannot",
        ),
        ({"method": "xshare_count", "args": [0]}, "xshare_count takes a number of steps from 1 to 2147483647, or None"),
        ({"method": "xshare_set", "kwargs": [1]}, "kwargs of xshare_set must be an object, not [1]"),
        ({"method": "xshare_sets", "args": []}, "'xshare_sets' is no method of xshare: it has xshare_set, "),
    ]:
        (answer,) = server.post("/collective_rpc", body)["results"]
        assert [*answer] == ["error"], body
        assert answer["error"].startswith(sentence)
    logged = server.log.read_text()[before:]
    assert "Traceback" not in logged
    assert "xshare: xshare_switch is refused: xshare_switch takes True or False, not 'off'" in logged
    assert server.rpc("xshare_stats")["policy"] == "k0=1,m=2"  # and it still answers


# Protected requests

EXACT, SHARED = ({"vllm_xargs": {"xshare": kind}} for kind in ("exact", "shared"))


def test_protected_requests_over_http(server):
    prompts = [words(8, i) for i in range(8)]

    def answers(kinds):
        requests = zip(prompts, kinds, strict=True)
        return together(
            server, lambda client: asyncio.gather(*(complete(client, prompt, 24, **kind) for prompt, kind in requests))
        )

    assert server.rpc("xshare_switch", False) == "True"
    native = answers([{}] * 8)
    assert server.rpc("xshare_switch", True) == "True"
    left_alone = ("steps_bypassed_total", "protected")
    for _ in range(10):  # on a busy machine requests may come one by one, too few for a budget to prune
        assert answers([EXACT] * 8) == native
        if server.settled_metrics().get(left_alone):
            break
    kinds, met = [EXACT, SHARED, {}, SHARED] * 2, False
    for _ in range(10):
        mixed = answers(kinds)
        assert [mixed[number] for number in (0, 4)] == [native[number] for number in (0, 4)]
        met = met or mixed != native
    assert met
    metrics = server.settled_metrics()
    assert metrics[("rows_protected",)] > 0
    assert all(metrics[("experts_protected", layer)] > 0 for layer in "01")
    assert all(metrics[("mass_shared", layer)] <= metrics[("mass_kept", layer)] for layer in "01")
    assert metrics[left_alone] > 0


@pytest.mark.parametrize("value", ["precise", 3, "EXACT", ["exact"]])
@pytest.mark.parametrize("stream", [False, True])
def test_another_value_is_answered_with_400_and_the_sentence(server, value, stream):
    body = {"model": "tiny", "prompt": "w5 w6", "max_tokens": 4, "vllm_xargs": {"xshare": value}, "stream": stream}
    answer = server.client.post("/v1/completions", json=body)
    if stream and answer.status_code == 200:  # the answer has begun by then, as for any other wrong parameter
        assert f"xshare of a request must be 'exact' or 'shared', not {value!r}" in answer.text
        return
    message = answer.json()["error"]["message"]
    assert (answer.status_code, message) == (400, f"xshare of a request must be 'exact' or 'shared', not {value!r}")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (EXACT | {"use_beam_search": True, "n": 2}, "xshare of a request cannot be chosen with beam search"),
        ({"cache_salt": "xshare-exact:mine"}, "cache_salt must not begin with 'xshare-exact:'"),
    ],
)
def test_what_cannot_be_protected_is_answered_with_400_too(server, more, sentence):
    answer = server.client.post("/v1/completions", json={"model": "tiny", "prompt": "w5 w6", "max_tokens": 4} | more)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(sentence)


def test_a_wrong_configuration_stops_the_server_with_its_sentence(small):
    refused = subprocess.run(
        command(small, 1, {"warmup": 1, "bugdet": 2}), env=environment(), capture_output=True, text=True, timeout=240
    )
    assert refused.returncode not in (0, None)
    assert "'bugdet' is no key of xshare: it takes policy, " in refused.stderr


# The soak


POLICIES = ["k0=1,m=2", "k0=1,m=8", "k0=2,m=0", "k0=1,m=0,mr=1", "k0=1,tau=0.8"]
# What the server's processes may grow by in the last two thirds. Switched off, the server grew by 90 MiB there too,
# ever more slowly; tensors are counted because of that.
GROWTH = 160 << 20


async def soak(client, dice, requests, control):
    """That many requests of random lengths, at most 24 at a time; a sixth hang up; the policy changes under way."""
    places = asyncio.Semaphore(24)
    finished = 0

    async def one(number):
        nonlocal finished
        async with places:
            await asyncio.sleep(dice.random() * 0.05)
            prompt, tokens = words(dice.randrange(1, 24), number), dice.randrange(1, 24)
            if number % 6 == 5:
                await abort(client, prompt, tokens + 20, after=dice.randrange(4))
            else:
                await complete(client, prompt, tokens)
            finished += 1

    async def change():
        while finished < requests:
            method, value = dice.choice([*(("xshare_set", policy) for policy in POLICIES), ("xshare_switch", False)])
            await control(client, "xshare_switch", True)
            await control(client, method, value)
            await asyncio.sleep(0.3)

    changing = asyncio.create_task(change())
    await asyncio.gather(*(one(number) for number in range(requests)))
    await changing


async def control(client, method, value):
    answer = await client.post("/collective_rpc", json={"method": method, "args": [value]})
    answer.raise_for_status()


def steps_counted(metrics):
    return sum(
        value
        for (name, *labels), value in metrics.items()
        if name in ("steps_pruned_total", "steps_bypassed_total") and labels != ["mismatch"]
    )


def test_five_hundred_requests_with_hang_ups_and_changes_of_policy(server):
    dice = random.Random(0)
    begun, steps_before = server.settled_metrics(), int(server.rpc("steps_seen"))
    memory, tensors, metrics = [], [], [begun]
    for requests in (170, 165, 165):
        together(server, lambda client, requests=requests: soak(client, dice, requests, control))
        metrics.append(server.settled_metrics())
        memory.append(server.memory())
        tensors.append(int(server.rpc("tensors_alive")))
        server.rpc("sets_seen")
    assert server.process.poll() is None
    for earlier, later in itertools.pairwise(metrics):
        counters = [key for key in earlier if key[0].endswith("_total")]
        assert all(later[key] >= earlier[key] for key in counters)
        assert later[("steps_pruned_total",)] > earlier[("steps_pruned_total",)]
    assert steps_counted(metrics[-1]) - steps_counted(begun) == int(server.rpc("steps_seen")) - steps_before
    assert metrics[-1].get(("steps_bypassed_total", "mismatch"), 0) == 0
    assert memory[-1] - memory[0] < GROWTH
    assert abs(tensors[-1] - tensors[0]) < 50


# As an engine

LONG = 80  # tokens of an answer: requests meet in a step even where the machine is busy


@pytest.fixture(scope="module")
def acting(server):
    """The server, which acts even where it cannot save anything: the control is a no-op."""
    server.rpc("bypass", False)
    return server


def test_a_server_is_an_engine_over_http(acting):
    engine = open_engine(acting.url)
    assert {name: engine.about.record()[name] for name in ("engine", "model", "experts", "top_k", "layers")} == {
        "engine": "vllm server", "model": "tiny", "experts": 16, "top_k": 4, "layers": 2
    }  # fmt: skip
    assert checked(engine, limit=LONG).steps == 0  # they are the server's own
    with pytest.raises(ValueError, match="refuses the policy oea:k0=1: method cannot change while serving"):
        engine.use(Policy.parse("oea:k0=1"))


@pytest.mark.parametrize("on", [True, False])
def test_a_server_is_left_as_it_was_found(acting, on):
    first = open_engine(acting.url)
    by_layer = Policy.parse("k0=1,m=3,ml=0:5")
    first.use(by_layer)
    assert first.remote.call("xshare_switch", on)
    second = open_engine(acting.url)
    assert second.serves == (by_layer if on else None)
    second.use(PRUNED)
    assert second._read_stats()["policy"] == str(PRUNED)
    second.use(Policy.parse("k0=1,m=3"))
    assert second._read_stats()["policy"] == "k0=1,m=3"
    second.use(by_layer)
    assert second._read_stats()["policy"] == "k0=1,m=3,ml=0:5"
    second.use(None)
    second.close()
    stats = open_engine(acting.url)._read_stats()
    assert (stats["policy"], stats["on"]) == (str(by_layer), on)
    first.close()


def test_costs_behind_http(acting, stairs, tmp_path):
    engine = open_engine(acting.url, cost=stairs)
    assert engine._read_stats()["cost"]
    for cost in (None, False, True, False):
        engine.use(PRUNED, cost=cost)
        assert engine._read_stats()["cost"] is (cost is not False)
        assert acting.settled_metrics()[("cost",)] == (cost is not False)
    engine.close()
    assert open_engine(acting.url)._read_stats()["cost"]  # as it was found
    other = tmp_path / "other.json"
    other.write_text(stairs.read_text() + " ")
    with pytest.raises(ServerError, match=r"cannot weigh sets by staircase .*: start it with that file as cost"):
        open_engine(acting.url, cost=other)


def test_bench_behind_http(acting, tmp_path, monkeypatch, capsys):
    more = ["--repeats", "2", "--engine", acting.url, "--tokens", "40", "--requests", "8"]
    code, out, rows = bench(monkeypatch, capsys, tmp_path / "b.json", *more)
    assert code == 0
    assert f"tiny on vllm server {rows and open_engine(acting.url).about.version}, {acting.url}" in out
    assert_compared(rows)
    assert all(row["step_ms"] is None and row["ttft_ms_p50"] > 0 for row in rows)


def test_bench_takes_what_is_served(acting, tmp_path):
    path = tmp_path / "b.json"
    open_engine(acting.url).use(PRUNED)
    result = CliRunner().invoke(app, [*PLAIN, "--engine", acting.url, "--repeats", "1", "--json", str(path)])
    assert result.exit_code == 0, result.output
    rows = json.loads(path.read_text())["rows"]
    assert [row["policy"] for row in rows] == ["native", "k0=1,m=16", "k0=1,m=0"]


def test_a_server_that_dies_leaves_what_was_measured(acting, tmp_path):
    """The last of this file: it ends the server."""
    path = tmp_path / "b.json"
    words = [*BENCH, "--engine", acting.url, "--repeats", "1000", "--json", str(path)]
    running = [sys.executable, "-c", "from xshare.cli import main; main()", *words]
    with subprocess.Popen(running, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        end = time.monotonic() + 180
        while not path.exists() and time.monotonic() < end and process.poll() is None:
            time.sleep(0.02)
        os.killpg(acting.process.pid, signal.SIGKILL)
        out, err = (stream.decode() for stream in process.communicate(timeout=60))
    assert process.returncode == 2, err
    (error,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert acting.url in error
    assert "k0=1,m=16 (control)" in out  # and shown
    results = SimpleNamespace(**json.loads(path.read_text()))
    assert len(results.samples) % 3 == 0
    assert [row["repeats"] for row in results.rows] == [len(results.samples) // 3] * 3
