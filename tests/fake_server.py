"""A small server that plays any kind of server, and misbehaves on demand."""

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Played(BaseHTTPRequestHandler):
    """Answers with one word `w` per requested token, or misbehaves on demand."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.server.paths.append(self.path)
        if self.path == "/v1/models":
            self.answer(self.server.models)
        elif self.path == "/metrics" and self.server.metrics:
            self.whole(200, self.server.metrics.encode())
        else:
            self.whole(404, b"{}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/completions":
            return self.whole(404, b"{}")
        self.server.bodies.append(body)
        self.server.keys.append(self.headers["Authorization"])
        if self.server.left is not None:
            self.server.left -= 1
        if self.server.how == "refuse" or (self.server.left is not None and self.server.left < 0):
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
            if number == 2 and self.server.how == "stall":  # the first word is let down, others wait
                if body["prompt"].startswith("a"):
                    return self.connection.shutdown(socket.SHUT_RDWR)
                time.sleep(25)
            if number == 2 and self.server.how == "garbage":
                self.part(b"data: {bad\n\n")
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


class QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """A client that hangs up is no error, not even when the answer is written after the test is over."""


@pytest.fixture
def played():
    server = QuietServer(("127.0.0.1", 0), Played)
    server.paths, server.bodies, server.keys, server.lock = [], [], [], threading.Lock()
    server.how, server.metrics = "well", ""
    server.now = server.most = 0
    server.left = None  # completions before it refuses
    server.models = {"data": [{"id": "tiny"}]}
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()
