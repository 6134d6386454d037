"""The server of test_server as others see it: `xshare watch`, the dashboard's metrics, keys and TLS."""

import asyncio
import json
import os
import pty
import re
import select
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import killed_command
import pytest
import yaml
from real_server import KEY
from tls_and_proxy import certificate, tls_before  # noqa: F401
from typer.testing import CliRunner

from xshare.cli import app
from xshare.engines.client import ServerError
from xshare.errors import XShareError

pytestmark = pytest.mark.engine
MONITORING = Path(__file__).resolve().parents[3] / "monitoring"
NAME = re.compile(r"\b(?:xshare|vllm):\w+")


@pytest.fixture(scope="module")
def served(server):
    """The server, after eight requests at a time, one of them protected: every figure has been counted."""
    import httpx

    async def ask():
        async with httpx.AsyncClient(base_url=server.url, timeout=120, headers=server.headers, verify=False) as client:
            body = {"model": "tiny", "prompt": "w5 w6", "max_tokens": 40, "ignore_eos": True}
            bodies = [body | {"vllm_xargs": {"xshare": "exact"}}, *[body] * 7]
            for answer in await asyncio.gather(
                *(client.post("/v1/completions", json=request_body) for request_body in bodies)
            ):
                answer.raise_for_status()

    for _ in range(10):  # on a busy machine requests may come one by one
        asyncio.run(ask())
        if server.settled_metrics().get(("rows_protected",)):
            return server
    return pytest.fail("no protected request has met another")


def watched(*words):
    return CliRunner().invoke(app, ["watch", *words, "--once", "--interval", "0.05"])


def test_one_view_agrees_with_the_servers_metrics(served):
    result = watched(served.url)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[:2] == [f"tiny at {served.url}", "k0=1,m=2, by cost: on"]
    assert "0 requests running, 0 waiting" in lines[2]
    steps = {line.split("  ")[0]: line.split()[-1] for line in lines if line.startswith(("acted on", "left alone: "))}
    metrics = served.metrics()
    assert steps["acted on"] == f"{metrics[('steps_pruned_total',)]:,.0f}"
    assert steps["left alone: prefill"] == f"{metrics[('steps_bypassed_total', 'prefill')]:,.0f}"
    (table,) = [number for number, line in enumerate(lines) if line.startswith("layer ")]
    for layer, line in zip("01", lines[table + 1 :], strict=True):
        _, native, loaded, kept, least, *_ = line.split()
        assert (native, loaded) == tuple(
            f"{metrics[(name, layer)]:.1f}" for name in ("experts_native", "experts_active")
        )
        assert (kept, least) == tuple(f"{metrics[(name, layer)]:.3f}" for name in ("mass_kept", "smallest_kept"))


def test_one_view_as_json(served):
    metrics = served.metrics()
    view = json.loads(watched(served.url + "/v1", "--json").output)
    assert (view["policy"], view["on"], view["cost"], view["trouble"]) == ("k0=1,m=2", True, True, None)
    assert view["rows_protected"] == metrics[("rows_protected",)] > 0
    assert view["samples"] == metrics[("samples",)] > 0
    for name in ("experts_native", "experts_active", "smallest_kept", "experts_protected"):
        assert view["by_layer"][name] == pytest.approx([metrics[(name, layer)] for layer in "01"])
    assert view["smallest_kept"] == min(view["by_layer"]["smallest_kept"])
    assert view["tokens_per_s"] == 0  # nobody asks


def test_tokens_and_steps_per_second_while_it_serves(served):
    """One view of a server that is asked all the while, by four that count their tokens."""
    body = {"model": "tiny", "prompt": "w5 w6", "max_tokens": 60, "ignore_eos": True}
    before, seen = served.metrics()[("steps_pruned_total",)], threading.Event()

    def keep_asking():
        answers = []
        while not seen.is_set():  # a fast machine answers before the view has begun
            answers.append(served.post("/v1/completions", body)["usage"]["completion_tokens"])
        return answers

    with ThreadPoolExecutor(4) as pool:
        askers = [pool.submit(keep_asking) for _ in range(4)]
        result = CliRunner().invoke(app, ["watch", served.url, "--once", "--json", "--interval", "3"])
        seen.set()
        answers = [tokens for asker in askers for tokens in asker.result()]
    assert set(answers) == {60}
    view = json.loads(result.output)
    tokens = view["tokens_per_s"] * view["window_s"]
    assert 0 < tokens < sum(answers) * 241 / 240  # the window is rounded
    assert view["steps_acted_on"] > before
    assert view["steps_acted_on_per_s"] > 0


def test_live_on_a_terminal_until_ctrl_c(served):
    words = ["watch", served.url, "--interval", "0.1"]
    child, terminal = pty.fork()
    if child == 0:
        try:  # whatever happens, the tests go on in the parent alone
            os.environ["TERM"] = "xterm"
            killed_command.run(words, None)
        except SystemExit as end:
            os._exit(end.code)
        finally:
            os._exit(1)
    output, stopped, end = b"", False, time.monotonic() + 60
    while time.monotonic() < end:
        try:
            output += os.read(terminal, 1 << 16) if select.select([terminal], [], [], 0.1)[0] else b""
        except OSError:  # it has ended
            break
        if output.count(b"acted on") >= 3 and not stopped:
            stopped = True
            os.kill(child, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130, output
    assert output.endswith(b"\x1b[?25h")  # the cursor is back
    assert b"Traceback" not in output


def test_what_the_dashboard_and_the_alarms_ask_for_is_there(served):
    page = served.client.get("/metrics").text
    there = set(re.findall(r"^([\w:]+)[ {]", page, flags=re.MULTILINE))
    dashboard = json.loads((MONITORING / "grafana/dashboards/xshare.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions.append(dashboard["templating"]["list"][0]["query"]["query"])
    (group,) = yaml.safe_load((MONITORING / "alarms.yml").read_text())["groups"]
    expressions += [rule["expr"] for rule in group["rules"]]
    assert all(NAME.search(expression) for expression in expressions)
    names = {name for expression in expressions for name in NAME.findall(expression)}
    assert names <= there
    assert {name for name in there if name.startswith("xshare:")} <= names  # nothing of ours is left out


# Keys and TLS


def measured(url, path, *words):
    words = [
        "quality",
        "--engine",
        url,
        "--questions",
        "1",
        "--tokens",
        "4",
        "--batch",
        "4",
        "--out",
        str(path),
        *words,
    ]
    return CliRunner().invoke(app, words)


def test_without_the_key_it_is_not_measured(served, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    none = measured(served.url, tmp_path / "q.json").exception
    assert isinstance(none, ServerError)
    assert str(none) == f"the server at {served.url} asks for a key (HTTP 401): --api-key or OPENAI_API_KEY names it"
    wrong = measured(served.url, tmp_path / "q.json", "--api-key", "sk-wrong").exception
    assert "does not accept the key that was given (HTTP 401)" in str(wrong)
    assert "sk-wrong" not in str(wrong)


def test_over_tls_with_the_key_which_no_file_holds(served, certificate, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    path = tmp_path / "q.json"
    with tls_before(served.port, certificate) as url:
        access = ["--ca-file", str(certificate[1]), "--api-key", KEY]
        monkeypatch.setattr("sys.argv", ["xshare", "quality", *access])
        result = measured(url, path, *access)
        assert result.exit_code == 0, result.output
        assert watched(url, *access[:2]).exit_code == 0
        with pytest.raises(XShareError, match="is not trusted"):
            raise measured(url, tmp_path / "none.json", *access[2:]).exception
    assert [row["policy"] for row in json.loads(path.read_text())["rows"]] == ["native", "k0=1,m=2"]
    assert json.loads(path.read_text())["provenance"]["argv"][-2:] == ["--api-key", "***"]
    assert KEY not in path.read_text() + result.output
    assert served.rpc("xshare_stats")["on"]  # as it was found
