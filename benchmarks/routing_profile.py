"""How much of a decode step is routing in vLLM, without XShare and with it, by the path that a model takes?

    python benchmarks/routing_profile.py [--json evidence/routing_profile.json]

Needs a GPU. For each shape two engines of a few layers with random weights, one after another, each in a process of its
own: unmodified vLLM, and one with the no-op control. An engine whose rows the file has is not started again. torch's
profiler times the kernels of decode steps; their names decide to which part they belong. `routing` is what runs between
the router's product and the experts' first product, `selection` is XShare's. A row has shape, layers, who, batch, part,
kernel, and launches and microseconds per layer and step. Gaps between launches are not counted, so each launch saved
gains about a microsecond more. What the model does once per step is shared out among the layers.
"""

from __future__ import annotations

import json as json_format
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from lib.model_shapes import SHAPES, experts_of, write
from lib.paths import EVIDENCE
from lib.routing_fits import fits

from xshare.cli.output import number_table, wide_console
from xshare.results import Results, Row

LAYERS, STEPS = 8, 32
FEWER_LAYERS = {"deepseek-v3": 3}  # as many as fit one card
SIDES = ("native", "control")
# A kernel belongs to the first part whose pattern its name matches.
PARTS = {
    "selection": r"select_in_|reroute_rows|count_step",
    "routing": r"topk|bitmatrix|combined_routing|moe_align|align_block_size|count_and_sort|grouped_topk|expt_data",
    "experts": r"matmul_ogs|fused_moe|moe_sum|swiglu|silu_and_mul|moe_wna|marlin",
    "attention": r"flash|attention|reshape_and_cache",
}


def part_of(kernel: str) -> str:
    return next((part for part, pattern in PARTS.items() if re.search(pattern, kernel)), "other")


def decoded(shape: str, control: bool, batches: list[int], folder: str) -> list[Row]:
    """Rows of the kernels of decode steps. Runs in a process of its own."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_STREAM": "ext://sys.stderr"}
    import torch
    from vllm import LLM, SamplingParams

    from xshare.engines.vllm.dummy_weights import register_dummy_loader

    if not control:
        register_dummy_loader()
    layers = FEWER_LAYERS.get(shape, LAYERS)
    config = SHAPES[shape](layers)
    experts = experts_of(config)
    noop: Row = {"policy": f"k0=1,m={experts}", "gates": {"bypass": False}, "metrics": False}
    llm: Any = LLM(
        model=str(write(config, Path(folder, "model"))),
        load_format="xshare_dummy",
        model_loader_extra_config=fits()["carried"],
        skip_tokenizer_init=True,
        max_model_len=512,
        max_num_seqs=64,
        gpu_memory_utilization=0.8,
        enable_prefix_caching=False,
        compilation_config={"cudagraph_capture_sizes": batches},
        **({"additional_config": {"xshare": noop}} if control else {}),
    )

    def decode(batch: int, tokens: int) -> None:
        prompts = [{"prompt_token_ids": [(97 * i + 7 * j) % 4000 for j in range(8)]} for i in range(batch)]
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        llm.generate(prompts, params, use_tqdm=False)

    rows: list[Row] = []
    for batch in batches:
        decode(batch, STEPS)
        launches, micros = Counter[str](), Counter[str]()
        for sign, tokens in ((-1, 1), (1, STEPS + 1)):  # less a run that only reads the prompts
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                decode(batch, tokens)
                torch.cuda.synchronize()
            for event in profile.events():
                if str(event.device_type).endswith("CUDA"):
                    launches[event.name] += sign
                    micros[event.name] += sign * event.device_time
        per = layers * STEPS
        for kernel, total in micros.most_common():
            about: Row = {"shape": shape, "layers": layers, "who": "control" if control else "native", "batch": batch}
            about |= {"part": part_of(kernel), "kernel": kernel[:120]}
            if total / per > 0.02:
                rows.append(about | {"launches": launches[kernel] / per, "us": total / per})
    return rows


def main(
    shape: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(SHAPES)}; may be repeated.")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Requests; may be repeated.")] = None,
    json: Annotated[Path, typer.Option(help="Results; goes on from them.")] = EVIDENCE / "routing_profile.json",
    one: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    batches = batch or [4, 16, 32]
    if one:
        name, side = one.split()
        with tempfile.TemporaryDirectory() as folder:
            print("RESULT " + json_format.dumps(decoded(name, side == "control", batches, folder)))
        return
    import torch
    import vllm

    about = {"gpu": torch.cuda.get_device_name(), "vllm": vllm.__version__, "regime": "carried", "seed": 0}
    results = Results(json, {"layers": LAYERS, "steps": STEPS}, about, lists=())
    for name in shape or SHAPES:
        for side in SIDES:
            if (name, side) in {(row["shape"], row["who"]) for row in results.rows}:
                continue
            batch_options = [option for size in batches for option in ("--batch", str(size))]
            environment = os.environ | ({} if side == "control" else {"VLLM_PLUGINS": ""})
            command = [sys.executable, __file__, "--one", f"{name} {side}", *batch_options]
            ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
            line = next(line for line in ran.stdout.splitlines() if line.startswith("RESULT "))
            results.rows += json_format.loads(line.removeprefix("RESULT "))
            results.write()
    show(results.rows)


def show(rows: list[Row]) -> None:
    table = number_table("a layer and step", "shape", "who", "batch", *(f"{part}, us" for part in (*PARTS, "other")),
                         "routing launches")  # fmt: skip
    for cell in dict.fromkeys((row["shape"], row["who"], row["batch"]) for row in rows):
        cell_rows = [row for row in rows if (row["shape"], row["who"], row["batch"]) == cell]
        times = [sum(row["us"] for row in cell_rows if row["part"] == part) for part in (*PARTS, "other")]
        launches = sum(row["launches"] for row in cell_rows if row["part"] in ("routing", "selection"))
        table.add_row(*map(str, cell), *(f"{time:.2f}" for time in times), f"{launches:.1f}")
    wide_console().print(table)


if __name__ == "__main__":
    typer.run(main)
