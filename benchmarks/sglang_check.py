"""Is selection right inside SGLang: every set of every step, in decode graphs at sizes on and off their grid?

    python benchmarks/sglang_check.py [--json evidence/sglang_check.json] [--only nano]

Runs in an environment with SGLang (`make test-sglang` makes one for the CPU). Each case is an engine of its own. Inside
its scheduler a witness compares the set of every layer at every decode step with the reference, computed from the
logits that the selection saw, and hashes both. Without a GPU, shapes are small and steps are eager.
"""

from __future__ import annotations

import json as json_format
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from xshare import models
from xshare.models.untied_output import untied
from xshare.quality.task_files import built_in
from xshare.results import Results, Row

GPU = torch.cuda.is_available()
BATCHES = (16, 13, 9, 32, 27) if GPU else (8, 5, 13)  # on the grid of captured sizes, and off it
TOKENS = 8
# nano is trained, and its routing shows in its answers; the others have random weights.
CASES: dict[str, dict[str, Any]] = {
    "nano": {"experts": 64},
    "nano eager": {"experts": 64, "eager": True},
    "qwen3": {"experts": 128 if GPU else 32},
    "gpt-oss": {"experts": 128, "gpu": True},  # SGLang has no attention for it on a CPU
}


def arguments(case: dict[str, Any]) -> dict[str, Any]:
    """Of sglang.Engine."""
    found: dict[str, Any] = {"max_running_requests": 64, "max_total_tokens": 32768, "skip_server_warmup": True}
    if not GPU:
        found |= {"device": "cpu", "dtype": "float32", "attention_backend": "torch_native"}
        return found | {"sampling_backend": "pytorch", "mem_fraction_static": 0.5, "disable_cuda_graph": True}
    found |= {"attention_backend": "triton", "sampling_backend": "pytorch", "moe_runner_backend": "triton"}
    return found | {"disable_cuda_graph": bool(case.get("eager"))}


def model(name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Its folder, and how it is loaded."""
    from shapes import gpt_oss_120b, qwen3_30b_a3b, write

    if name.startswith("nano"):
        return untied(models.folder("nano"), folder / "nano"), {}
    shape = gpt_oss_120b(4, tiny=not GPU) if name == "gpt-oss" else qwen3_30b_a3b(4, tiny=not GPU)
    shape.pop("quantization_config", None)  # random weights in MXFP4 have no loader here
    return write(shape, folder / name), {"load_format": "dummy", "skip_tokenizer_init": True}


def prompts(name: str, folder: Path, count: int) -> list[list[int]]:
    if not name.startswith("nano"):
        return [[(257 * (7 * i + j) + 3) % 4000 for j in range(8)] for i in range(count)]
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    asked = [tokenizer.encode(task.prompt).ids for task in built_in(5)]
    return [asked[i % len(asked)] for i in range(count)]


def run_case(name: str) -> list[Row]:
    case, rows = CASES[name], list[Row]()
    policy = f"k0=1,m={24 if GPU else 8}"
    settings = {"policy": policy, "gates": {"bypass": False}, "live": "any", "metrics": {"every": 1}}
    os.environ["XSHARE"] = json_format.dumps(settings)
    import sglang

    def check(what: str, passed: bool, detail: str, **more: Any) -> None:
        rows.append({"check": f"{name}: {what}", "passed": bool(passed), "detail": detail, **more})

    with tempfile.TemporaryDirectory() as made:
        folder, loading = model(name, Path(made))
        engine = sglang.Engine(model_path=str(folder), log_level="warning", **arguments(case), **loading)

        def told() -> dict[str, Any]:
            found: dict[str, Any] = engine.get_server_info()["internal_states"][0]["xshare"]
            return found

        def generate(count: int, kinds: list[str] | None = None) -> list[list[int]]:
            each = kinds or ["shared"] * count
            params = [
                {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True, "custom_params": {"xshare": kind}}
                for kind in each
            ]
            found = engine.generate(input_ids=prompts(name, folder, count), sampling_params=params)
            return [answer["output_ids"] for answer in found]

        def witnessed(what: str, count: int, kinds: list[str] | None = None) -> list[list[int]]:
            engine.flush_cache()
            engine.collective_rpc("xshare_check", on=True)
            tokens = generate(count, kinds)
            found = told()["checked"]
            detail = f"{found['compared']} sets over {found['steps']} decode steps, {found['differ']} differ"
            hashes = {"sha256": found["sha256"], "sha256_reference": found["sha256_reference"]}
            check(what, found["compared"] > 0 and not found["differ"], detail, **hashes)
            return tokens

        try:
            state = told()
            layers = 6 if name.startswith("nano") else 4
            check("attached", len(state["layers"]) == layers, f"{len(state['layers'])} of {layers} layers")
            for batch in BATCHES:
                pruned = witnessed(f"S equals the reference, batch {batch}", batch)
            witnessed("S with protected requests equals the reference", 9, ["exact"] * 2 + ["shared"] * 7)
            engine.collective_rpc("xshare_set", policy=f"k0=1,m={case['experts']}")
            everything = witnessed("S is all experts with a budget of N", BATCHES[-1])
            engine.collective_rpc("xshare_check", on=False)
            engine.collective_rpc("xshare_switch", on=False)
            native = generate(BATCHES[-1])
            same = sum(a == b for a, b in zip(everything, native, strict=True))
            check("a budget of N gives the native tokens", same == len(native), f"{same} of {len(native)}")
            other = sum(a != b for a, b in zip(pruned, native, strict=True))
            if name.startswith("nano"):
                engine.collective_rpc("xshare_switch", on=True)
                engine.collective_rpc("xshare_set", policy="k0=0,m=4")
                other = sum(a != b for a, b in zip(generate(BATCHES[-1]), native, strict=True))
                check("a set of 4 experts does not", other > 0, f"{other} of {len(native)} differ from native")
        finally:
            engine.shutdown()
    return rows


def main(
    json: Annotated[Path | None, typer.Option(help="Write the rows here.")] = None,
    case: Annotated[str | None, typer.Option(help="Run this case alone, in this process.")] = None,
    only: Annotated[str, typer.Option(help="Run the cases whose names contain this.")] = "",
) -> None:
    if case is not None:
        print("RESULT " + json_format.dumps(run_case(case)))
        return
    rows: list[Row] = []
    for name in [name for name in CASES if only in name and (GPU or not CASES[name].keys() & {"eager", "gpu"})]:
        ran = subprocess.run([sys.executable, __file__, "--case", name], capture_output=True, text=True, check=False)
        line = next((line for line in ran.stdout.splitlines() if line.startswith("RESULT ")), None)
        if line is None:
            said = (ran.stderr.strip().splitlines() or ["nothing"])[-1]
            rows.append({"check": f"{name}: ran", "passed": False, "detail": f"exit code {ran.returncode}: {said}"})
        else:
            rows += json_format.loads(line.removeprefix("RESULT "))
    for row in rows:
        print("ok  " if row["passed"] else "FAIL", row["check"], "|", row["detail"])
    if json is not None:
        import sglang

        gpu = torch.cuda.get_device_name() if GPU else None
        written = Results(json, None, {"gpu": gpu, "sglang": sglang.__version__, "seed": 0}, lists=())
        written.rows = rows
        written.write()
    raise typer.Exit(0 if rows and all(row["passed"] for row in rows) else 1)


if __name__ == "__main__":
    typer.run(main)
