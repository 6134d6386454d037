"""A real vLLM server of a model on the CPU, in processes of its own: start it, scrape it, weigh it, end it."""

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

Metrics = dict[tuple[str, str], float]  # by name and labels, less those of the engine and the model


def command(model: Path, port: int, key: Row | None, more: Sequence[str]) -> list[str]:
    found = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    found += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", NAME, "--dtype", "float32"]
    found += ["--enforce-eager", "--max-model-len", str(MAX_TOKENS), "--max-num-seqs", str(MAX_REQUESTS)]
    found += ["--kv-cache-memory-bytes", str(64 << 20), "--worker-extension-cls", "lib.soak_worker.Counting", *more]
    return [*found, "--additional-config", json.dumps({"xshare": key})] if key is not None else found


def environment() -> dict[str, str]:
    # Live control needs the first. The last: a client must be the first to hang up on a silent connection.
    return os.environ | {
        "VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": python_path(), "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60"
    }  # fmt: skip


class Server:
    def __init__(self, model: Path, log: Path, key: Row | None, more: Sequence[str] = ()) -> None:
        """`key`: what stands under xshare in additional_config; None: vLLM as it is. `more`: options of vLLM's."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url, self.log, self.key = f"http://127.0.0.1:{port}", log, key
        self.client = httpx.Client(base_url=self.url, timeout=60)
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command(model, port, key, more), env=environment(), stdout=out, stderr=out, start_new_session=True
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
        (found,) = answer.json()["results"]
        return found

    def metrics(self) -> Metrics:
        return read_metrics(self.client.get("/metrics").text)

    def settled(self, seconds: float = 60) -> Metrics:
        """The metrics once nothing runs, and the figures of the last step have been written."""
        end, before = time.monotonic() + seconds, None
        while (now := self.steps_and_load()) != before and time.monotonic() < end:
            before = now
            time.sleep(2.5)  # more than two of the intervals at which figures are written
        return self.metrics()

    def steps_and_load(self) -> Row:
        found = self.metrics()
        watched = ("xshare:steps", "vllm:num_requests", "vllm:request_success", "vllm:generation_tokens")
        return {key[0] + key[1]: value for key, value in found.items() if key[0].startswith(watched)}

    def tracebacks(self) -> tuple[int, int]:
        """In the log: those of bodies that vLLM refuses, and all others."""
        found = [line for line in self.log.read_text(errors="replace").splitlines() if TRACEBACK in line]
        refusing = sum(REFUSING in line for line in found)
        return refusing, len(found) - refusing

    # Processes

    def processes(self) -> dict[str, psutil.Process]:
        """The server's processes by what they are."""
        first = psutil.Process(self.process.pid)
        return {"APIServer": first} | {_role(each): each for each in first.children(recursive=True)}

    def memory(self) -> dict[str, int]:
        """Resident bytes of each process."""
        found = {}
        for name, process in self.processes().items():
            with suppress(psutil.NoSuchProcess):
                found[name] = int(process.memory_info().rss)
        return found

    def kill_engine(self) -> None:
        self.processes()["EngineCore"].kill()

    def ended(self, seconds: float) -> bool:
        """Whether it ends by itself in that time."""
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
    found = {}
    for name, labels, value in SAMPLE.findall(text):
        kept = [f"{label}={given}" for label, given in LABEL.findall(labels) if label not in ("engine", "model_name")]
        found[name, ",".join(kept)] = float(value)
    return found
