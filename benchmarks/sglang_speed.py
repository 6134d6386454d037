"""What selection gives in SGLang: native routing, a no-op control and presets, in turns on one server.

    python benchmarks/sglang_speed.py [--json evidence/sglang_speed.json] [--shape qwen3] [--batch 16]

Runs in an environment with SGLang. A server with random weights (lib/sglang_dummy_weights.py, routing `carried` of
fit_routing.py: this measures speed, not quality) in the shape of Qwen3-30B-A3B or gpt-oss-120b is started, and
`xshare bench` measures it by its address: that is paired, and writes every repeat as it comes. The vocabulary is
nano's, whose tokenizer it has, and prompts are random words of it: such weights make the next token from the last one
alone, so prompts with the same end would be one and the same answer. Without a GPU all of it is small, and shows that
the command runs.
"""

from __future__ import annotations

import json as json_format
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from lib.routing_fits import fits
from lib.sglang_dummy_weights import write_plugin
from tokenizers import Tokenizer

from xshare import models
from xshare.cli import main as xshare
from xshare.engines.client import Http, ServerError
from xshare.results import write_result

GPU = torch.cuda.is_available()
PRESETS = ("careful", "balanced", "fast")
SETTINGS = {"policy": "balanced", "gates": {"bypass": False}}


def command(folder: Path, port: int) -> list[str]:
    options: dict[str, object] = {"model-path": folder, "load-format": "dummy", "served-model-name": "random"}
    options |= {"host": "127.0.0.1", "port": port, "max-running-requests": 64, "max-total-tokens": 65536}
    options |= {"sampling-backend": "pytorch", "decode-log-interval": 200}
    flags = ["--skip-server-warmup"]
    if GPU:
        options |= {"attention-backend": "triton", "moe-runner-backend": "triton", "grammar-backend": "none"}
        options["cuda-graph-backend-prefill"] = "disabled"  # answers are measured
    else:
        options |= {
            "device": "cpu",
            "dtype": "float32",
            "attention-backend": "torch_native",
            "mem-fraction-static": 0.5,
        }
        flags.append("--disable-cuda-graph")
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "sglang.launch_server", *words, *flags]


def model(shape: str, layers: int, folder: Path) -> Path:
    from lib.model_shapes import gpt_oss_120b, qwen3_30b_a3b, write

    nano = models.folder("nano")
    config = gpt_oss_120b(layers, tiny=not GPU) if shape == "gpt-oss" else qwen3_30b_a3b(layers, tiny=not GPU)
    config.pop("quantization_config", None)
    ids = {"vocab_size": 3072, "eos_token_id": 0, "bos_token_id": 1, "pad_token_id": 0}
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(nano / name, folder / name)
    return write(config | ids, folder)


def write_prompts(folder: Path, words: int) -> Path:
    """Prompts of random words, one per line."""
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    whole = sorted(
        token[1:] for token in vocabulary if token.startswith("Ġ") and token[1:].isascii() and token[1:].isalpha()
    )
    rng, path = random.Random(0), folder / "prompts.txt"
    path.write_text("".join(" ".join(rng.choices(whole, k=words)) + "\n" for _ in range(256)))
    return path


def add_facts(path: Path | None, shape: str) -> None:
    """What `xshare bench` cannot know of a server."""
    if path is not None and path.exists():
        content = json_format.loads(path.read_text())
        facts = {"gpu": torch.cuda.get_device_name() if GPU else None, "shape": shape}
        facts["weights"] = "random, routing `carried`: speed, not quality"
        lists = {name: records for name, records in content.items() if name not in ("format", "provenance", "rows")}
        write_result(path, content["rows"], content["provenance"] | facts, **lists)


def wait(http: Http, process: subprocess.Popen[bytes], seconds: float) -> None:
    began = time.monotonic()
    while time.monotonic() < began + seconds and process.poll() is None:
        try:
            if http.ask("/health")[0] == 200:
                print(f"the server was up after {time.monotonic() - began:.0f} s", flush=True)
                return
        except ServerError:
            time.sleep(1)
    sys.exit("the server did not start: its log is above")


def main(
    json: Annotated[Path | None, typer.Option(help="Write the rows here.")] = None,
    shape: Annotated[str, typer.Option(help="qwen3 or gpt-oss.")] = "qwen3",
    layers: Annotated[int, typer.Option(help="Layers; fewer leave a GPU waiting for the server.")] = 48 if GPU else 2,
    batch: Annotated[int, typer.Option(help="Requests decoded together.")] = 16 if GPU else 4,
    tokens: Annotated[int, typer.Option(help="Tokens of an answer.")] = 128 if GPU else 8,
    repeats: Annotated[int, typer.Option(help="Runs of each policy.")] = 8 if GPU else 2,
    seconds: Annotated[float, typer.Option(help="Wait so long for the server.")] = 600,
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    http = Http(f"http://127.0.0.1:{port}", 120)
    with tempfile.TemporaryDirectory() as temporary:
        env = os.environ | write_plugin(Path(temporary, "plugin"), fits()["carried"])
        env |= {"XSHARE": json_format.dumps(SETTINGS)} | ({} if GPU else {"SGLANG_USE_CPU_ENGINE": "1"})
        folder = model(shape, layers, Path(temporary, shape))
        server = subprocess.Popen(command(folder, port), env=env, stdout=sys.stderr, start_new_session=True)
        try:
            wait(http, server, seconds)
            bench = ["xshare", "bench", "--engine", http.url, "--batch", str(batch), "--tokens", str(tokens)]
            bench += ["--repeats", str(repeats), "--prompts", str(write_prompts(folder, 32)), "--prompt-tokens", "32"]
            sys.argv = bench + [word for preset in PRESETS for word in ("--policy", preset)]
            sys.argv += ["--out", str(json)] if json is not None else []
            try:
                xshare()
            finally:
                add_facts(json, shape)
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)  # with its other processes


if __name__ == "__main__":
    typer.run(main)
