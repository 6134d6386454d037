"""vLLM as an engine, in process and behind HTTP; and `xshare bench` on both."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from models import cleaned_up, prepared
from serving import Server, environment
from typer.testing import CliRunner

from xshare.cli import app, main
from xshare.engines.opening import open_engine
from xshare.engines.vllm.engine import arguments
from xshare.engines.vllm.settings import SettingsError
from xshare.errors import ModelError, PolicyError
from xshare.policy import Policy
from xshare.tune.scan import scan

pytestmark = pytest.mark.engine

OPTIONS = {"dtype": "float32", "enforce_eager": True, "max_model_len": 128, "kv_cache_memory_bytes": 64 << 20}
OPTIONS |= {"additional_config": {"xshare": {"metrics": {"every": 1}}}}
CONTROL, PRUNED = Policy.parse("k0=1,m=16"), Policy.parse("k0=1,m=0")
PLAIN = ["bench", "--batch", "4", "--prompt-tokens", "9", "--tokens", "8"]
BENCH = [*PLAIN, "--policy", "k0=1,m=0"]


def checked(engine, limit=12):
    """What every engine must do: batches, arrivals, ends; policies live; native's tokens under the control."""
    prompts = [engine.encode(f"what is {number} and {3 * number}?") for number in range(7)]

    def tokens(policy, **more):
        engine.use(policy)
        run = engine.run(prompts, **({"limit": limit, "batch": 4, "to_the_end": True} | more))
        return run, [answer.tokens for answer in run.answers]

    def met(policy):
        """On a busy machine a server may have answered one request before the next comes: then ask again."""
        for _ in range(20):
            found = tokens(policy)[1]
            if engine.stats().mean["experts_native"] > 4:
                return found
        pytest.fail("no two requests met in a step")

    run, native = tokens(None)
    assert [len(answer) for answer in native] == [limit] * 7
    assert all(sorted(answer.times_s) == answer.times_s for answer in run.answers)
    assert len({tuple(answer) for answer in native}) > 4
    assert engine.stats().steps_pruned == 0
    assert met(CONTROL) == native
    stats = engine.stats()
    assert stats.steps_pruned >= 11
    assert stats.mean["experts_active"] == stats.mean["experts_native"]
    assert met(PRUNED) != native
    assert engine.stats().mean["experts_active"] < engine.stats().mean["experts_native"]
    assert tokens(None)[1] == native  # nothing that was pruned is left
    assert engine.stats().mean == {}
    late, _ = tokens(None, limit=3, batch=7, arrivals=[0.3, *[0.0] * 6])
    assert late.answers[0].first_s > 0
    assert late.answers[0].times_s[0] > 0.3 == late.answers[0].arrived_s
    return run


def scanned(engine):
    """Every candidate of tune has seen the same steps, however seldom the engine counts otherwise."""
    engine.llm.collective_rpc("xshare_count", args=(1000,))
    prompts = [engine.encode(f"what is {number} and {3 * number}?") for number in range(4)]
    engine.use(PRUNED)
    engine.run(prompts, limit=4, batch=4, to_the_end=True)
    assert engine.stats().samples == 1  # the first step after a change
    found = scan(engine, prompts, 8)
    assert len({round(each.native[0], 6) for each in found}) == 1  # later layers see what became of the first
    assert all(0 < a <= n for each in found for a, n in zip(each.active, each.native, strict=True))
    assert engine.llm.collective_rpc("xshare_stats")[0]["samples"] > 1
    with pytest.raises(SettingsError, match="xshare_count takes a number of steps from 1 up"):
        engine.llm.collective_rpc("xshare_count", args=(0,))


def test_in_process(small):
    prepared()
    cleaned_up()
    engine = open_engine("vllm", str(small), options=OPTIONS | {"max_num_seqs": 8})
    try:
        run = checked(engine)
        scanned(engine)
        with pytest.raises(ModelError, match="decodes 8 requests at once, not 9: raise its max_num_seqs"):
            engine.run([[5]] * 9, limit=2, batch=9)
    finally:
        engine.close()
    # Four requests and then three: the first token of each comes with its prompt, the others in steps of their own.
    assert (run.steps, run.rows) == (22, 77)
    assert 0 < run.decode_s < run.answers[-1].times_s[-1]
    assert (run.drafted, run.accepted) == (0, 0)


@pytest.fixture(scope="module")
def started(small):
    prepared()
    policies = [Policy.parse("k0=1,mr=1")]
    engine = open_engine("vllm", str(small), drafts=2, policies=policies, options=OPTIONS)
    yield engine
    engine.close()


def test_in_process_with_drafts(started):
    assert started.about.experts == 16
    assert started.about.expert_bytes == 2 * 3 * 64 * 32 * 4  # layers, matrices, float32
    assert (started.about.top_k, started.about.layers, started.about.drafts) == (4, 2, 2)
    run = checked(started)
    assert run.drafted == pytest.approx(2 * 7 * 11, abs=14)  # none for the last token
    assert 0 <= run.accepted < run.drafted
    assert run.steps * 4 * 3 >= run.rows  # at most four requests in a step, at most three tokens each
    found = {str(each.policy): each for each in scan(started, [[number] for number in range(5, 9)], 8)}
    assert found["k0=1,m=0"].mean_active <= found["k0=1,m=0,mr=2"].mean_active <= found["k0=1,m=0,mr=8"].mean_active
    assert all(each.kl is None for each in found.values())


def test_selection_is_made_for_the_score_of_the_policies():
    for text in ("full", "topk"):
        given = arguments(0, [Policy.parse(f"k0=1,m=2,score={text}")], {})
        assert given["additional_config"]["xshare"]["score"] == text


def test_what_cannot_be_changed_or_read(started):
    with pytest.raises(PolicyError, match="method cannot change while serving"):
        started.use(Policy.parse("oea:k0=1"))
    with pytest.raises(ModelError, match="cannot be forced beside drafts: measure KL and perplexity without them"):
        started.diverge([[5]], [[5, 6]], 1)
    with pytest.raises(ModelError, match="a prompt of 500 tokens does not fit this engine: its max_model_len is 128"):
        started.run([[5] * 500], limit=2, batch=1)
    assert [len(answer.tokens) for answer in started.run([[5]], limit=2, batch=1, to_the_end=True).answers] == [2]


def test_a_wrong_argument_is_one_sentence(small):
    with pytest.raises(ModelError, match="vLLM runs XShare's own policies, not oea:k0=1: take the transformers engine"):
        open_engine("vllm", str(small), policies=[Policy.parse("oea:k0=1")])
    with pytest.raises(ModelError, match=r"vllm cannot serve .*unexpected keyword argument 'dtyp'"):
        open_engine("vllm", str(small), options={"dtyp": "float32"})
    with pytest.raises(ModelError, match="no folder of a model"):
        open_engine("vllm", "nowhere")


def test_bench_in_process(started, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("xshare.cli.bench.open_engine", lambda *args, **options: started)
    monkeypatch.setattr(started, "close", lambda: None)
    code, out, rows = bench(monkeypatch, capsys, tmp_path / "b.json", "--repeats", "2")
    assert code == 0
    assert "16 experts, top-4, 2 layers" in out
    assert "4 requests, 4 at a time, prompts of 9 tokens, answers of 8, 2 drafts" in out
    assert "Drafts are made up" in out
    assert_compared(rows)
    assert all(row["step_ms"] > 0 and row["step_ratio"] > 0 and row["accepted_length"] >= 1 for row in rows)


def bench(monkeypatch, capsys, path, *more):
    """-> exit code, standard output, rows."""
    monkeypatch.setattr("sys.argv", ["xshare", *BENCH, "--json", str(path), *more])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code or 0, capsys.readouterr().out, json.loads(path.read_text())["rows"]


def assert_compared(rows):
    native, control, pruned = rows
    assert [row["policy"] for row in rows] == ["native", "k0=1,m=16", "k0=1,m=0"]
    assert control["identical"] == 1  # token for token
    assert control["acted"] == 1
    assert native["active"] == control["active"] == control["active_native"]
    assert pruned["active"] < pruned["active_native"]
    assert pruned["ratio_low"] <= pruned["ratio"] <= pruned["ratio_high"]


# Behind HTTP

LONG = 200  # tokens of an answer: requests meet in a step even where the machine is busy


@pytest.fixture(scope="module")
def server(small, tmp_path_factory):
    config = {"warmup": 1, "gates": {"bypass": False}, "metrics": {"every": 1, "interval": 0.5}}
    found = Server(small, tmp_path_factory.mktemp("log") / "server.log", config)
    try:
        found.wait_until_ready()
        yield found
    finally:
        found.stop()


def test_behind_http(server):
    engine = open_engine(server.url)
    assert {name: engine.about.record()[name] for name in ("engine", "model", "experts", "top_k", "layers")} == {
        "engine": "vllm server", "model": "tiny", "experts": 16, "top_k": 4, "layers": 2
    }  # fmt: skip
    assert checked(engine, limit=LONG).steps == 0  # they are the server's own
    with pytest.raises(ValueError, match="refuses the policy oea:k0=1: its log says why"):
        engine.use(Policy.parse("oea:k0=1"))


@pytest.mark.parametrize("on", [True, False])
def test_a_server_is_left_as_it_was_found(server, on):
    first = open_engine(server.url)
    by_layer = Policy.parse("k0=1,m=3,ml=0:5")
    first.use(by_layer)
    first._rpc("xshare_switch", on)
    second = open_engine(server.url)
    assert second.serves == (by_layer if on else None)
    second.use(PRUNED)
    assert second._counted()["policy"] == str(PRUNED)
    second.use(Policy.parse("k0=1,m=3"))
    assert second._counted()["policy"] == "k0=1,m=3"
    second.use(by_layer)
    assert second._counted()["policy"] == "k0=1,m=3,ml=0:5"
    second.use(None)
    second.close()
    found = open_engine(server.url)._counted()
    assert (found["policy"], found["on"]) == (str(by_layer), on)
    first.close()


def test_bench_behind_http(server, tmp_path, monkeypatch, capsys):
    code, out, rows = bench(
        monkeypatch,
        capsys,
        tmp_path / "b.json",
        "--repeats",
        "2",
        "--engine",
        server.url,
        "--tokens",
        str(LONG),
        "--requests",
        "8",
    )
    assert code == 0
    assert f"tiny on vllm server {rows and open_engine(server.url).about.version}, {server.url}" in out
    assert_compared(rows)
    assert all(row["step_ms"] is None and row["ttft_ms_p50"] > 0 for row in rows)


def test_bench_takes_what_is_served(server, tmp_path):
    path = tmp_path / "b.json"
    open_engine(server.url).use(PRUNED)
    result = CliRunner().invoke(app, [*PLAIN, "--engine", server.url, "--repeats", "1", "--json", str(path)])
    assert result.exit_code == 0, result.output
    rows = json.loads(path.read_text())["rows"]
    assert [row["policy"] for row in rows] == ["native", "k0=1,m=16", "k0=1,m=0"]


def test_a_server_that_dies_leaves_what_was_measured(server, tmp_path):
    """The last of this file: it ends the server."""
    path = tmp_path / "b.json"
    words = [*BENCH, "--engine", server.url, "--repeats", "1000", "--json", str(path)]
    running = [sys.executable, "-c", "from xshare.cli import main; main()", *words]
    with subprocess.Popen(running, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        end = time.monotonic() + 180
        while not path.exists() and time.monotonic() < end and process.poll() is None:
            time.sleep(0.02)
        os.killpg(server.process.pid, signal.SIGKILL)
        out, err = (each.decode() for each in process.communicate(timeout=60))
    assert process.returncode == 2, err
    (said,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert server.url in said
    assert "k0=1,m=16 (control)" in out  # and shown
    found = SimpleNamespace(**json.loads(path.read_text()))
    assert len(found.samples) % 3 == 0
    assert [row["repeats"] for row in found.rows] == [len(found.samples) // 3] * 3
