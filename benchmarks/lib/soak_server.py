"""A real vLLM server on the CPU, in processes of its own: start it, scrape it, read its memory, stop it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from lib.paths import python_path
from xshare.errors import XShareError
from xshare.results import Row

NAME = "soaked"  # of the model, in requests
MAX_TOKENS, MAX_REQUESTS = 512, 16  # of a request, prompt and answer together; of a step
SAMPLE = re.compile(r"^([\w:]+)(?:\{(.*)\})? ([^ ]+)$", re.MULTILINE)  # a line of /metrics
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
TRACEBACK = "Traceback (most recent call last)"
REFUSING = "[validation.py:"  # where vLLM logs a body that it refuses, with a traceback for each

Metrics = dict[tuple[str, str], float]  # by name and labels; the labels engine and model_name are left out


def command(model: Path, port: int, key: Row | None, options: Sequence[str]) -> list[str]:
    arguments = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    arguments += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", NAME, "--dtype", "float32"]
    arguments += ["--enforce-eager", "--max-model-len", str(MAX_TOKENS), "--max-num-seqs", str(MAX_REQUESTS)]
    arguments += [
        "--kv-cache-memory-bytes",
        str(64 << 20),
        "--worker-extension-cls",
        "lib.soak_worker.Counting",
        *options,
    ]
    return [*arguments, "--additional-config", json.dumps({"xshare": key})] if key is not None else arguments


def environment() -> dict[str, str]:
    # Live control needs the dev mode. Keep-alive: a client must be the first to close an idle connection.
    return os.environ | {
        "VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": python_path(), "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60"
    }  # fmt: skip


class Server:
    def __init__(self, model: Path, log: Path, key: Row | None, options: Sequence[str] = ()) -> None:
        """key: the value of xshare in additional_config, None for vLLM alone; options: further options of vLLM."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url, self.log, self.key = f"http://127.0.0.1:{port}", log, key
        self.client = httpx.Client(base_url=self.url, timeout=60)
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command(model, port, key, options), env=environment(), stdout=out, stderr=out, start_new_session=True
            )

    def wait_until_ready(self, seconds: float = 600) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            with suppress(httpx.TransportError):
                if self.client.get("/health").status_code == 200:
                    self.rpc("count_steps")
                    return
            time.sleep(0.2)
        raise XShareError(f"the server did not start: its log {str(self.log)!r} says why")

    def rpc(self, method: str, *args: Any) -> Any:
        """What the one worker answers."""
        answer = self.client.post("/collective_rpc", json={"method": method, "args": list(args)})
        answer.raise_for_status()
        (result,) = answer.json()["results"]
        return result

    def metrics(self) -> Metrics:
        return read_metrics(self.client.get("/metrics").text)

    def settled(self, seconds: float = 60) -> Metrics:
        """The metrics once nothing runs and the figures of the last step are in."""
        end, before = time.monotonic() + seconds, None
        while (now := self.steps_and_load()) != before and time.monotonic() < end:
            before = now
            time.sleep(2.5)  # more than two intervals at which figures are written
        return self.metrics()

    def steps_and_load(self) -> Row:
        metrics = self.metrics()
        watched = ("xshare:steps", "vllm:num_requests", "vllm:request_success", "vllm:generation_tokens")
        return {key[0] + key[1]: value for key, value in metrics.items() if key[0].startswith(watched)}

    def tracebacks(self) -> tuple[int, int]:
        """Tracebacks in the log: how many are of request bodies that vLLM refuses, and how many others there are."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if TRACEBACK in line]
        refusing = sum(REFUSING in line for line in lines)
        return refusing, len(lines) - refusing

    # Processes

    def processes(self) -> dict[str, psutil.Process]:
        """The server's processes by their role (APIServer, EngineCore, Worker ...)."""
        first = psutil.Process(self.process.pid)
        return {"APIServer": first} | {_role(process): process for process in first.children(recursive=True)}

    def memory(self) -> dict[str, int]:
        """Resident bytes of each process."""
        resident = {}
        for name, process in self.processes().items():
            with suppress(psutil.NoSuchProcess):
                resident[name] = int(process.memory_info().rss)
        return resident

    def ended(self, seconds: float) -> bool:
        """Whether the server ends on its own within `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.poll() is not None

    def stop(self) -> None:
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        if not self.ended(30):
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def _role(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        words = " ".join(process.cmdline())
        for part in ("EngineCore", "Worker", "resource_tracker"):
            if part in words:
                return part
        return f"{process.name()} {process.pid}"
    return f"process {process.pid}"


def read_metrics(text: str) -> Metrics:
    metrics = {}
    for name, labels, value in SAMPLE.findall(text):
        pairs = [
            f"{label}={label_value}"
            for label, label_value in LABEL.findall(labels)
            if label not in ("engine", "model_name")
        ]
        metrics[name, ",".join(pairs)] = float(value)
    return metrics
