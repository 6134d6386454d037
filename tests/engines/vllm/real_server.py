"""A real server in a process of its own, and how to talk to it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
KEY = "sk-of-the-tests"
NOT_THERE = ("VLLM_ENABLE_V1_MULTIPROCESSING", "TRITON_INTERPRET")  # for this process alone


def command(model, port, config):
    arguments = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    arguments += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny", "--dtype", "float32"]
    arguments += ["--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "16"]
    arguments += ["--kv-cache-memory-bytes", str(64 << 20), "--worker-extension-cls", "worker_extension.Watched"]
    arguments += ["--api-key", KEY]
    return [*arguments, "--additional-config", json.dumps({"xshare": config})]


def environment():
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_THERE}
    paths = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")]))
    variables = {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": paths, "VLLM_LOGGING_LEVEL": "INFO", "OPENAI_API_KEY": KEY}
    # A server hangs up on a client that was silent for 5 s, and httpx keeps a silent connection for 5 s: a request sent
    # just then is lost. The client has to be the first.
    return inherited | variables | {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60"}


class Server:
    def __init__(self, model, log, config):
        import httpx

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url, self.log, self.headers = f"http://127.0.0.1:{self.port}", log, {"Authorization": f"Bearer {KEY}"}
        # One client for all requests: each new one would read all certificates again.
        self.client = httpx.Client(base_url=self.url, timeout=60, headers=self.headers)
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command(model, self.port, config), env=environment(), stdout=out, stderr=out, start_new_session=True
            )

    def wait_until_ready(self, seconds=240):
        import httpx

        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if self.client.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.2)
        pytest.fail(f"the server did not start:\n{self.log.read_text()[-4000:]}")

    def post(self, path, body):
        answer = self.client.post(path, json=body)
        answer.raise_for_status()
        return answer.json()

    def rpc(self, method, *args):
        (answer,) = self.post("/collective_rpc", {"method": method, "args": list(args)})["results"]
        return answer

    def metrics(self):
        """xshare:* by name and labels, less the engine's number."""
        from prometheus_client.parser import text_string_to_metric_families

        values = {}
        for family in text_string_to_metric_families(self.client.get("/metrics").text):
            for sample in family.samples:
                if sample.name.startswith("xshare:"):
                    labels = [value for name, value in sample.labels.items() if name != "engine"]
                    values[(sample.name.removeprefix("xshare:"), *labels)] = sample.value
        return values

    def settled_metrics(self):
        """Metrics once nothing runs and the figures have been written."""
        before = None
        while (now := self.metrics()) != before:
            before = now
            time.sleep(0.6)  # three times the interval
        return now

    def memory(self):
        import psutil

        server = psutil.Process(self.process.pid)
        return sum(process.memory_info().rss for process in [server, *server.children(recursive=True)])

    def stop(self):
        self.client.close()
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
