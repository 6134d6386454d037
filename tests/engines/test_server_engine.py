"""Servers of every kind, played by a small one: what they offer is used, and what goes wrong is one sentence."""

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from xshare.engines.client import ServerError
from xshare.engines.server import ServerEngine
from xshare.policy import Policy

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


class Played(BaseHTTPRequestHandler):
    """Answers a word w for each token asked for, or misbehaves as it is told."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.server.paths.append(self.path)
        if self.path == "/v1/models":
            self.answer({"data": [{"id": "tiny"}]})
        elif self.path == "/metrics" and self.server.metrics:
            self.whole(200, self.server.metrics.encode())
        else:
            self.whole(404, b"{}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/completions":
            return self.whole(404, b"{}")
        self.server.bodies.append(body)
        if self.server.how == "refuse":
            return self.whole(400, b'{"error": {"message": "the prompt is too long"}}')
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with self.server.lock:
            self.server.now += 1
            self.server.most = max(self.server.most, self.server.now)
        for number in range(body["max_tokens"]):
            if number == 2 and self.server.how == "drop":
                return self.connection.shutdown(socket.SHUT_RDWR)
            if number == 2 and self.server.how == "hang":
                time.sleep(1.5)
            if number == 2 and self.server.how == "error":
                self.chunk({"error": {"message": "out of memory"}})
            if number == 2 and self.server.how == "end":
                break
            self.chunk({"choices": [{"text": "w "}]})
            time.sleep(0.005)
        else:
            with self.server.lock:  # before the client learns of the end and asks again
                self.server.now -= 1
            self.chunk({"choices": [], "usage": {}})
            self.part(b"data: [DONE]\n\n")
        self.part(b"")

    def chunk(self, what):
        self.part(b"data: " + json.dumps(what).encode() + b"\n\n")

    def part(self, what):
        self.wfile.write(f"{len(what):x}\r\n".encode() + what + b"\r\n")

    def answer(self, what):
        self.whole(200, json.dumps(what).encode())

    def whole(self, status, what):
        self.send_response(status)
        self.send_header("Content-Length", str(len(what)))
        self.end_headers()
        self.wfile.write(what)


@pytest.fixture
def played(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Played)
    monkeypatch.setattr(server, "handle_error", lambda *args: None)  # those that hang up
    server.daemon_threads = True
    server.paths, server.bodies, server.lock, server.how, server.metrics = [], [], threading.Lock(), "well", ""
    server.now = server.most = 0
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_plain_server_is_measured_as_it_runs(played):
    engine = ServerEngine(played.url + "/v1")
    assert engine.about == {
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
    assert engine.stats() == {"steps_pruned": 0, "steps_bypassed": {}, "mean": {}}
    with pytest.raises(ServerError, match=r"runs native and cannot be changed to k0=1,m=2: start it with VLLM_SERVER_"):
        engine.use(POLICY)
    with pytest.raises(ServerError, match="no /tokenize"):
        engine.encode("one")


def test_requests_come_when_they_are_due(played):
    run = ServerEngine(played.url).run([[1], [2]], limit=2, batch=4, arrivals=[0.6, 0.0])
    assert [answer.arrived_s for answer in run.answers] == [0.6, 0.0]
    assert run.answers[0].times_s[0] > 0.6
    assert [body["prompt"] for body in played.bodies] == [[2], [1]]


def test_metrics_say_what_runs(played):
    played.metrics = METRICS
    engine = ServerEngine(played.url, "tiny")
    engine.use(POLICY)
    with pytest.raises(ServerError, match="runs k0=1,m=2 and cannot be changed to native"):
        engine.use(None)
    found = engine.stats()
    assert found["steps_pruned"] == 12
    assert found["steps_bypassed"] == {"prefill": 3}
    assert found["mean"] == {"experts_native": 11, "experts_active": 5}


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("refuse", "refuses a completion: the prompt is too long"),
        ("drop", "(dropped the connection|ended a completion)"),
        ("hang", "said nothing for 0.5 s"),
        ("error", "gave up on a completion: out of memory"),
        ("end", "ended a completion after 2 tokens"),
    ],
)
def test_what_goes_wrong_is_one_sentence(played, how, sentence):
    played.how = how
    engine = ServerEngine(played.url, timeout=0.5 if how == "hang" else 30)
    with pytest.raises(ServerError, match=f"the server at {played.url} {sentence}"):
        engine.run(["a", "b", "c"], limit=9, batch=2)


def test_another_model_than_it_serves(played):
    with pytest.raises(ServerError, match="does not serve huge: it serves tiny"):
        ServerEngine(played.url, "huge")
