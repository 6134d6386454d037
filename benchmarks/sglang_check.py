"""Is selection right inside SGLang: every set of every step, in decode graphs at sizes on and off their grid?

    python benchmarks/sglang_check.py [--json evidence/sglang_check.json] [--only qwen3] [--seconds 200]

Runs in an environment with SGLang (`make test-sglang` makes one for the CPU). Each case is an engine of its own. Inside
its scheduler a witness compares the set of every layer at every decode step with the reference, computed from the
logits that the selection saw, and hashes both. Without a GPU, shapes are small and steps are eager.

A row is written as soon as it is known. The file keeps the rows of other versions and other devices.
"""

from __future__ import annotations

import json as json_format
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from lib.model_shapes import gpt_oss_120b, qwen3_30b_a3b, write
from lib.routing_fits import fits
from lib.sglang_dummy_weights import write_plugin

from xshare import models
from xshare.models.untied_output import write_untied_copy
from xshare.quality.task_files import built_in
from xshare.results import Results, Row

GPU = torch.cuda.is_available()
BATCHES = (16, 13, 9, 32, 27) if GPU else (8, 5, 13)  # on the grid of captured sizes, and off it
TOKENS = 8
# Requests of one call may be put into batches in another way each time, which can change the last bit on a GPU.
TRIES = 3 if GPU else 1
# nano is trained, and its routing shows in its answers; the others have random weights that route as a trained model's.
CASES: dict[str, dict[str, Any]] = {
    "nano": {"experts": 64},
    "qwen3": {"experts": 128 if GPU else 32},
    "nano drafts": {"experts": 64, "gpu": True, "drafts": 3},
    "gpt-oss": {"experts": 128, "gpu": True},  # SGLang has no attention for it on a CPU
    "gpt-oss routed by its kernel": {"experts": 128, "gpu": True, "moe_runner_backend": "triton_kernel"},
    "nano eager": {"experts": 64, "gpu": True, "eager": True},
    "nano, prompts in graphs too": {"experts": 64, "gpu": True, "prefill": "breakable"},
}


def arguments(case: dict[str, Any]) -> dict[str, Any]:
    """Arguments for sglang.Engine."""
    options: dict[str, Any] = {
        "max_running_requests": 64,
        "max_total_tokens": 32768,
        "skip_server_warmup": True,
    }
    if not GPU:
        options |= {"device": "cpu", "dtype": "float32", "attention_backend": "torch_native"}
        options |= {"sampling_backend": "pytorch", "mem_fraction_static": 0.5, "disable_cuda_graph": True}
        return options | {"log_level": "warning"}
    if case.get("drafts"):
        rows = 1 + case["drafts"]
        options |= {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": rows}
    options |= {"attention_backend": "triton", "sampling_backend": "pytorch", "grammar_backend": "none"}
    options |= {"cuda_graph_backend_prefill": case.get("prefill", "disabled")}
    options |= {"moe_runner_backend": case.get("moe_runner_backend", "triton")}
    # The log says of every decode step whether it was a graph's.
    return options | {
        "disable_cuda_graph": bool(case.get("eager")),
        "log_level": "info",
        "decode_log_interval": 1,
    }


def model(name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Its folder, and how it is loaded."""
    if name.startswith("nano"):
        # SGLang's kernel for heads of 32 does not store keys in bfloat16.
        return write_untied_copy(models.folder("nano"), folder / "nano"), {"dtype": "float16"} if GPU else {}
    shape = gpt_oss_120b(4, tiny=not GPU) if name.startswith("gpt-oss") else qwen3_30b_a3b(4, tiny=not GPU)
    shape.pop("quantization_config", None)  # random weights in MXFP4 have no loader here
    os.environ |= write_plugin(folder / "plugin", fits()["carried"])
    sys.path.insert(0, str(folder / "plugin"))  # which the engine's processes inherit
    return write(shape, folder / "random"), {"load_format": "dummy", "skip_tokenizer_init": True}


def prompts(name: str, folder: Path, count: int) -> list[list[int]]:
    if not name.startswith("nano"):
        return [[(257 * (7 * i + j) + 3) % 4000 for j in range(8)] for i in range(count)]
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    questions = [tokenizer.encode(task.prompt).ids for task in built_in(5)]
    return [questions[i % len(questions)] for i in range(count)]


def run_case(name: str) -> None:
    """In this process; each row goes to the standard output, behind a word that marks it."""
    case = CASES[name]
    policy = f"k0=1,m={24 if GPU else 8}"
    settings = {"policy": policy, "gates": {"bypass": False}, "live": "any", "metrics": {"every": 1}}
    os.environ["XSHARE"] = json_format.dumps(settings)
    if not GPU:
        os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    import sglang

    def check(what: str, passed: bool, detail: str, **columns: Any) -> None:
        row = {"check": f"{name}: {what}", "passed": bool(passed), "detail": detail, **columns}
        print("RESULT " + json_format.dumps(row), flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        folder, loading = model(name, Path(temporary))
        engine = sglang.Engine(model_path=str(folder), **arguments(case), **loading)

        def xshare_stats() -> dict[str, Any]:
            stats: dict[str, Any] = engine.get_server_info()["internal_states"][0]["xshare"]
            return stats

        def generate(count: int, kinds: list[str] | None = None) -> list[tuple[int, ...]]:
            request_kinds = kinds or ["shared"] * count
            params = [
                {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True, "custom_params": {"xshare": kind}}
                for kind in request_kinds
            ]
            outputs = engine.generate(input_ids=prompts(name, folder, count), sampling_params=params)
            return [tuple(answer["output_ids"]) for answer in outputs]

        def answers(count: int) -> list[set[tuple[int, ...]]]:
            """Per prompt, the different answers of a few tries."""
            return [set(texts) for texts in zip(*(generate(count) for _ in range(TRIES)), strict=True)]

        def witnessed(what: str, count: int, kinds: list[str] | None = None) -> None:
            engine.flush_cache()
            engine.collective_rpc("xshare_check", on=True)
            generate(count, kinds)
            counts = xshare_stats()["checked"]
            detail = f"{counts['compared']} sets over {counts['steps']} decode steps, {counts['differ']} differ"
            hashes = {"sha256": counts["sha256"], "sha256_reference": counts["sha256_reference"]}
            check(what, counts["compared"] > 0 and not counts["differ"], detail, **hashes)

        try:
            state = xshare_stats()
            layers = 6 if name.startswith("nano") else 4
            check("attached", len(state["layers"]) == layers, f"{len(state['layers'])} of {layers} layers")
            for batch in BATCHES:
                witnessed(f"S equals the reference, batch {batch}", batch)
            witnessed("S with protected requests equals the reference", 9, ["exact"] * 2 + ["shared"] * 7)
            if case.get("drafts"):
                engine.collective_rpc("xshare_set", policy="k0=1,m=0,mr=4")
                witnessed("S with a budget of a request equals the reference", BATCHES[-1])
            engine.collective_rpc("xshare_set", policy=f"k0=1,m={case['experts']}")
            witnessed("S is all experts with a budget of N", BATCHES[-1])
            engine.collective_rpc("xshare_check", on=False)
            everything = answers(BATCHES[-1])
            engine.collective_rpc("xshare_switch", on=False)
            native = answers(BATCHES[-1])
            same = sum(bool(a & b) for a, b in zip(everything, native, strict=True))
            check("a budget of N gives the native tokens", same == len(native), f"{same} of {len(native)}")
            if name.startswith("nano"):
                engine.collective_rpc("xshare_switch", on=True)
                engine.collective_rpc("xshare_set", policy="k0=0,m=4")
                other = sum(not a & b for a, b in zip(answers(BATCHES[-1]), native, strict=True))
                check("a set of 4 experts does not", other > 0, f"{other} of {len(native)} differ from native")
        finally:
            engine.shutdown()


def rows_of(name: str, seconds: float) -> Iterator[Row]:
    """A case in a process of its own: its rows as they come, and what its log says of graphs."""
    child = subprocess.Popen(
        [sys.executable, __file__, "--case", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # ended with the engine's other processes
    )
    assert child.stdout is not None
    late = threading.Timer(seconds, os.killpg, (child.pid, signal.SIGKILL))
    late.start()
    last_lines: deque[str] = deque(maxlen=60)
    replayed, eager = set[int](), set[int]()
    for line in child.stdout:
        if line.startswith("RESULT "):
            yield json_format.loads(line.removeprefix("RESULT "))
            continue
        last_lines.append(line.rstrip())
        if step := re.search(r"Decode batch.*#running-req: (\d+).*graph: (True|False)", line):
            (replayed if step[2] == "True" else eager).add(int(step[1]))
    ended_in_time = late.is_alive()
    late.cancel()
    if child.wait() != 0 or not ended_in_time:
        print(*last_lines, sep="\n", file=sys.stderr)
        why = f"exit code {child.returncode}" if ended_in_time else f"not done in {seconds:.0f} seconds"
        error = next((line for line in reversed(last_lines) if "Error" in line or line.startswith("xshare")), "")
        yield {"check": f"{name}: ran to the end", "passed": False, "detail": f"{why}: {error}"[:400]}
    elif GPU:
        as_asked = eager and not replayed if CASES[name].get("eager") else replayed and not eager
        detail = f"requests of replayed steps {sorted(replayed)}, of eager ones {sorted(eager)}"
        what = "no step is a graph's" if CASES[name].get("eager") else "every decode step is a graph's"
        yield {"check": f"{name}: {what}", "passed": bool(as_asked), "detail": detail}


def main(
    json: Annotated[Path | None, typer.Option(help="Write the rows here.")] = None,
    case: Annotated[str | None, typer.Option(help="Run this case alone, in this process.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Run this case; may be given again.")] = None,
    seconds: Annotated[float, typer.Option(help="End a case after so many seconds.")] = 600,
) -> None:
    for name in (case, *(only or ())):
        if name is not None and name not in CASES:
            raise typer.BadParameter(f"{name!r} is no case: those are {', '.join(map(repr, CASES))}")
    if case is not None:
        run_case(case)
        return
    import sglang

    device = torch.cuda.get_device_name() if GPU else "cpu"
    about = {"gpu": device if GPU else None, "sglang": sglang.__version__, "seed": 0}
    results = Results(json, {"tokens": TOKENS}, about, lists=())
    passed = []
    for name in only or [name for name in CASES if GPU or not CASES[name].get("gpu")]:
        for row in rows_of(name, seconds):
            print("ok  " if row["passed"] else "FAIL", row["check"], "|", row["detail"], flush=True)
            passed.append(row["passed"])
            record = {"sglang": sglang.__version__, "device": device, **row}
            results.put([record], ("sglang", "device", "check"))
            results.write()
    raise typer.Exit(0 if passed and all(passed) else 1)


if __name__ == "__main__":
    typer.run(main)
