"""How much of a decode step is routing in vLLM, without XShare and with it, by the path that a model takes?

    python benchmarks/routing_profile.py [--json evidence/routing_profile.json]
    python benchmarks/routing_profile.py --drafts 3 --json FILE

Needs a GPU. For each shape two engines of a few layers with random weights, one after another, each in a process of its
own: unmodified vLLM, and one with the no-op control. An engine whose rows the file has is not started again. torch's
profiler times the kernels of decode steps; their names decide to which part they belong. `routing` is what runs between
the router's product and the experts' first product, `selection` is XShare's. A row has shape, layers, who, batch, part,
kernel, and launches and microseconds per layer and step. Gaps between launches are not counted, so each launch saved
gains about a microsecond more. What the model does once per step is shared out among the layers.

With --drafts 3: gpt-oss-120b's shape with an EAGLE-3 head, 4 requests of 4 rows each. Three engines as paper_speed.py
has them are started together and profiled one after another: unmodified vLLM, the control in the kernel of the presets
(`presets-eagle3`), and the control in the kernel of policies with request budgets (`eagle3`). The head's kernels belong
to the parts that their names decide, too. `--tiny` tries this without a GPU: operators take the place of kernels.
"""

from __future__ import annotations

import json as json_format
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from lib.engine_process import PROMPT, Engine
from lib.model_shapes import SHAPES, experts_of, gpt_oss_120b, write
from lib.paths import EVIDENCE
from lib.routing_fits import fits
from paper_speed import PIECES, SHAPE, WARM, start_options

from xshare.cli.output import number_table, wide_console
from xshare.results import Results, Row

LAYERS, STEPS = 8, 32
FEWER_LAYERS = {"deepseek-v3": 3}  # as many as fit one card
SIDES = ("native", "control")
DRAFTS = 3
# With drafts: the piece of paper_speed.py whose second engine it is. Their kernels were compiled for other policies.
DRAFTED = {"native": "", "control": "presets-eagle3", "control, request budgets": "eagle3"}
DRAFTED_BATCHES = PIECES["presets-eagle3"].batches
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
        setting: Row = {"shape": shape, "layers": layers, "who": "control" if control else "native", "batch": batch}
        rows += rows_of(setting, {kernel: [launches[kernel], total] for kernel, total in micros.items()})
    return rows


def rows_of(setting: Row, kernels: dict[str, list[float]]) -> list[Row]:
    """Rows of the kernels that take any time. `kernels`: launches and microseconds in all layers and steps."""
    per = setting["layers"] * STEPS
    rows = []
    for kernel, (launches, total) in sorted(kernels.items(), key=lambda item: -item[1][1]):
        if total / per > 0.02:
            named = setting | {"part": part_of(kernel), "kernel": kernel[:120]}
            rows.append(named | {"launches": launches / per, "us": total / per})
    return rows


def drafted(sides: list[str], batch: int, tiny: bool) -> list[Row]:
    """Rows of the kernels of decode steps with drafts."""
    experts = experts_of(gpt_oss_120b(LAYERS, tiny))
    task = (PIECES["presets-eagle3"], ("carried", batch, PROMPT), 1)
    options = start_options([task], {"tiny": tiny, "regimes": fits()}, LAYERS, STEPS)
    rows: list[Row] = []
    with ExitStack() as stack:
        engines = {}
        for number, who in enumerate(sides):
            second = PIECES[DRAFTED[who]].second(experts) if DRAFTED[who] else {"rule": None}
            engines[who] = stack.enter_context(Engine(f"profile_{number}", options | second))
        for who, engine in engines.items():  # no other may still be starting when one is profiled
            print(f"{who}: started, {engine.answer()}", flush=True)
        for who, engine in engines.items():
            engine.ask("decode", batch=batch, steps=2 * WARM, seed=0)
            if DRAFTED[who]:
                engine.ask("policy", policy=f"k0=1,m={experts}")
            kernels = engine.ask("profile", batch=batch, steps=STEPS, warm=WARM)
            setting = {"shape": SHAPE, "layers": LAYERS, "drafts": DRAFTS, "who": who, "batch": batch}
            rows += rows_of(setting, kernels)
            if DRAFTED[who]:
                counted = engine.ask("counted", batch=batch)
                print(f"{who}: selected in {counted['pruned']} of {counted['decoded']} steps", flush=True)
    return rows


def main(
    shape: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(SHAPES)}; may be repeated.")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Requests; may be repeated.")] = None,
    drafts: Annotated[int, typer.Option(help=f"{DRAFTS}: {SHAPE}'s shape with drafts, instead of the others.")] = 0,
    tiny: Annotated[bool, typer.Option("--tiny", help="With drafts: a small shape, without a GPU.")] = False,
    json: Annotated[Path, typer.Option(help="Results; goes on from them.")] = EVIDENCE / "routing_profile.json",
    one: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    if drafts not in (0, DRAFTS) or (drafts and set(shape or [SHAPE]) != {SHAPE}):
        raise typer.BadParameter(f"drafts are profiled in the shape {SHAPE}, {DRAFTS} of a request")
    if tiny and not drafts:
        raise typer.BadParameter("without drafts there is no small shape")
    batches = batch or ([4] if drafts else [4, 16, 32])
    if drafts and set(batches) - set(DRAFTED_BATCHES):
        raise typer.BadParameter(f"with drafts graphs are captured for {DRAFTED_BATCHES} requests, not for {batches}")
    if one:
        name, side = one.split()
        with tempfile.TemporaryDirectory() as folder:
            print("RESULT " + json_format.dumps(decoded(name, side == "control", batches, folder)))
        return
    import torch
    import vllm

    gpu = None if tiny else torch.cuda.get_device_name()
    about = {"gpu": gpu, "vllm": vllm.__version__, "regime": "carried", "seed": 0}
    results = Results(json, {"layers": LAYERS, "steps": STEPS} | ({"tiny": True} if tiny else {}), about, lists=())
    known = {(row["shape"], row["who"], row.get("drafts", 0), row["batch"]) for row in results.rows}
    for size in batches if drafts else []:
        if sides := [who for who in DRAFTED if (SHAPE, who, drafts, size) not in known]:
            results.rows += drafted(sides, size, tiny)
            results.write()
    for name in [] if drafts else shape or SHAPES:
        for side in SIDES:
            left = [size for size in batches if (name, side, 0, size) not in known]
            if not left:
                continue
            batch_options = [option for size in left for option in ("--batch", str(size))]
            environment = os.environ | ({} if side == "control" else {"VLLM_PLUGINS": ""})
            command = [sys.executable, __file__, "--one", f"{name} {side}", *batch_options]
            ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
            line = next(line for line in ran.stdout.splitlines() if line.startswith("RESULT "))
            results.rows += json_format.loads(line.removeprefix("RESULT "))
            results.write()
    show(results.rows)


def show(rows: list[Row]) -> None:
    columns = ("shape", "drafts", "who", "batch")
    table = number_table("a layer and step", *columns, *(f"{part}, us" for part in (*PARTS, "other")),
                         "routing launches")  # fmt: skip

    def cell_of(row: Row) -> tuple[Any, ...]:
        return row["shape"], row.get("drafts", 0), row["who"], row["batch"]

    for cell in dict.fromkeys(map(cell_of, rows)):
        cell_rows = [row for row in rows if cell_of(row) == cell]
        times = [sum(row["us"] for row in cell_rows if row["part"] == part) for part in (*PARTS, "other")]
        launches = sum(row["launches"] for row in cell_rows if row["part"] in ("routing", "selection"))
        table.add_row(*map(str, cell), *(f"{time:.2f}" for time in times), f"{launches:.1f}")
    wide_console().print(table)


if __name__ == "__main__":
    typer.run(main)
