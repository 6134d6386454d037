"""SGLang's OpenAI server on nano: with XShare and without, its /metrics, live control, and it as an engine that is
measured; and starts that are refused. Each test with a server has it for itself: they are dear, so there are two."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sglang_probes import ARGUMENTS

from xshare.engines.by_name import open_engine
from xshare.engines.client import Http, ServerError
from xshare.policy import Policy
from xshare.quality.task_files import built_in

pytestmark = [pytest.mark.engine, pytest.mark.sglang]
PRUNED, CONTROL = Policy.parse("k0=0,m=4"), Policy.parse("k0=1,m=64")
SETTINGS = {"policy": "k0=1,m=8", "gates": {"bypass": False}, "live": "any", "metrics": {"every": 1, "interval": 0.5}}


def command(model, port):
    arguments = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model)]
    arguments += ["--served-model-name", "nano", "--host", "127.0.0.1", "--port", str(port), "--enable-metrics"]
    for name, value in ARGUMENTS.items():
        arguments += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return arguments


def environment(**more):
    inherited = {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "XSHARE")}
    return inherited | {"SGLANG_USE_CPU_ENGINE": "1"} | more


class Server:
    def __init__(self, model, log, **env):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.http, self.log = Http(f"http://127.0.0.1:{port}", 120), log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command(model, port), env=environment(**env), stdout=out, stderr=out, start_new_session=True
            )

    def wait_until_ready(self, seconds=400):
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if self.http.ask("/health")[0] == 200:
                    return
            except ServerError:
                time.sleep(0.5)
        pytest.fail(f"the server did not start:\n{self.log.read_text()[-4000:]}")

    def complete(self, prompt, **more):
        body = {"model": "nano", "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True} | more
        status, text = self.http.ask("/v1/completions", body)
        return status, json.loads(text)

    def answers(self, prompts, **more):
        with ThreadPoolExecutor(len(prompts)) as pool:
            replies = list(pool.map(lambda prompt: self.complete(prompt, **more), prompts))
        assert {status for status, _ in replies} == {200}
        return [answer["choices"][0]["text"] for _, answer in replies]

    def stop(self):
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture(scope="module")
def prompts():
    return [task.prompt for task in built_in(1)]


@pytest.fixture(scope="module")
def servers(nano, tmp_path_factory):
    """One with XShare and one without."""
    logs = tmp_path_factory.mktemp("logs")
    both = [Server(nano, logs / "xshare.log", XSHARE=json.dumps(SETTINGS)), Server(nano, logs / "plain.log")]
    try:
        for server in both:
            server.wait_until_ready()
        yield both
    finally:
        for server in both:
            server.stop()


@pytest.fixture(scope="module")
def server(servers):
    return servers[0]


@pytest.fixture(scope="module")
def native(servers, prompts):
    """Answers of a server without XSHARE in its environment."""
    assert "xshare" not in json.dumps(servers[1].http.ask_json("/server_info"))
    return servers[1].answers(prompts)


def test_a_budget_of_all_experts_gives_the_text_of_a_server_without_it(server, native, prompts):
    engine = open_engine(server.http.url)
    engine.use(CONTROL)
    assert server.answers(prompts) == native
    assert engine.stats().steps_pruned > 0
    engine.use(PRUNED)
    # On a busy machine requests may come one by one.
    assert any(server.answers(prompts) != native for _ in range(5))
    engine.use(None)
    assert server.answers(prompts) == native
    engine.close()


def test_a_protected_request_is_answered_natively_beside_others(server, native, prompts):
    engine = open_engine(server.http.url)
    engine.use(PRUNED)
    assert server.answers(prompts, custom_params={"xshare": "exact"}) == native
    engine.close()
    status, answer = server.complete(prompts[0], custom_params={"xshare": "never"})
    assert status == 400
    assert "xshare of a request must be 'exact' or 'shared', not 'never'" in json.dumps(answer)


def test_bench_and_quality_measure_it_and_leave_it_as_it_was(server, tmp_path, monkeypatch):
    from xshare.cli import main

    rows = {}
    for name, more in {
        "bench": ["--batch", "4", "--prompt-tokens", "9", "--tokens", "6", "--repeats", "2"],
        "quality": ["--questions", "1", "--batch", "4", "--tokens", "12"],
    }.items():
        path = tmp_path / f"{name}.json"
        words = ["xshare", name, "--engine", server.http.url, "--policy", str(PRUNED), "--out", str(path), *more]
        monkeypatch.setattr("sys.argv", words)
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        rows[name] = json.loads(path.read_text())["rows"]
        assert "sglang server" in path.read_text()
    assert {"native", str(PRUNED)} <= {row["policy"] for row in rows["bench"]}
    assert open_engine(server.http.url).serves == Policy.parse("k0=1,m=8")


def test_metrics_hold_what_the_scheduler_counts(server, prompts):
    server.answers(prompts)
    wanted = ("xshare:on{", "xshare:steps_pruned_total", "xshare:steps_bypassed_total{", "xshare:experts_active{")
    end = time.monotonic() + 30
    while time.monotonic() < end:
        text = server.http.ask("/metrics")[1]
        if all(name in text for name in wanted):
            break
        time.sleep(1)
    assert [name for name in wanted if name not in text] == []
    log = server.log.read_text()
    assert "xshare: k0=1,m=8 on 6 layers (SGLang 0.5.23" in log
    assert "steps pruned, bypassed: " in log


def test_live_control_refuses_with_a_sentence(server):
    engine = open_engine(server.http.url)
    with pytest.raises(ServerError, match="method cannot change while serving"):
        engine.use(Policy.parse("oea:k0=2"))
    engine.close()


# Another plugin, with which one hook cannot be put in place.
BREAKS = """
from sglang.srt.plugins.hook_registry import HookRegistry

def register():
    native = HookRegistry._apply_target.__func__

    def apply(cls, target, hooks):
        if target.endswith("ModelRunner.load_model"):
            raise ValueError("made up")
        native(cls, target, hooks)

    HookRegistry._apply_target = classmethod(apply)
"""


def add_plugin(folder):
    (folder / "breaks.py").write_text(BREAKS)
    (folder / "breaks-1.dist-info").mkdir()
    (folder / "breaks-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: breaks\nVersion: 1\n")
    entry = "[sglang.srt.plugins]\nbreaks = breaks:register\n"
    (folder / "breaks-1.dist-info" / "entry_points.txt").write_text(entry)


@pytest.mark.parametrize("broken", ["settings", "hook"])
def test_a_start_that_is_not_right_is_refused(nano, tmp_path, broken):
    """A wrong setting; and a hook that SGLang does not put in place, which it logs and goes on."""
    if broken == "hook":
        add_plugin(tmp_path)
    settings = SETTINGS | ({"gates": {"min_rows": 0}} if broken == "settings" else {})
    env = environment(XSHARE=json.dumps(settings), PYTHONPATH=str(tmp_path))
    ended = subprocess.run(command(nano, 1), env=env, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 1
    says = {
        "settings": "xshare: gates.min_rows in xshare",
        "hook": "xshare: SGLang has not put a hook in place at sglang.srt.model_executor.model_runner.ModelRunner.load",
    }
    assert says[broken] in ended.stderr
