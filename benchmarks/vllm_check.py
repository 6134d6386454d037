"""Is selection right inside vLLM: eager, piecewise and full graphs, both model runners, both paths, with drafts?

    python benchmarks/vllm_check.py [--json evidence/vllm_check.json] [--tiny]

Each case is an engine of its own with random weights (`xshare_dummy`) in a process of its own, several at once: this
checks results, not speed. At every decode step the set of every layer is compared with the reference, computed from the
logits that the kernel saw. Where our kernel routes (one launch), ids, weights and tables of every row, padding
included, are compared with vLLM's own routing of the masked logits, to the bit. `--tiny` runs small shapes on a machine
without a GPU.

The cases `across` (`--only across`) take the path of several data-parallel ranks with a group of one: the kernel in two
halves, and a real all-reduce in between, in the captured graph. There, and in the cases of DeepSeek-V3's router (with
its groups, and without as Kimi's and GLM's), every row's experts and weights are compared with the reference's.
"""

from __future__ import annotations

import json as json_format
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from lib.recorded_rows import record_routing, record_rows, take_path_of_several
from lib.witness import Witness

from xshare.engines.vllm.compatibility import vllm_version
from xshare.results import Results, Row

BATCHES = (16, 13, 9, 32, 27)  # on the grid of captured sizes, and off it
PROTECTED = 4  # requests of 16
COVERAGE = {"warmup": 0, "coverage": 0.7}  # with drafts, a policy without request budgets runs another kernel
# Pairs that run the same kernels, so that their tokens must be equal. Compilation changes roundings, so an eager engine
# is compared with graphs of uncompiled code, and kinds of graphs with each other.
SAME = [
    ("V1 eager", "V1 full, not compiled"),
    ("V1 full", "V1 piecewise"),
    ("V1 full", "V2 full"),
    ("V1 full", "V1 full, in host memory"),
    ("V1 full, in host memory", "V2 full, in host memory"),
    ("V1 full", "V1 full, across"),
    ("V1 full, across", "V2 full, across"),
    ("V1 full, across", "V1 full, across vLLM's NCCL"),
]
CASES: dict[str, dict[str, Any]] = {
    "gpt-oss V1 eager": {"shape": "gpt-oss", "eager": True},
    "gpt-oss V1 full, not compiled": {"shape": "gpt-oss", "graphs": "FULL_DECODE_ONLY", "mode": 0},
    "gpt-oss V1 piecewise": {"shape": "gpt-oss", "graphs": "PIECEWISE"},
    "gpt-oss V1 full": {"shape": "gpt-oss", "graphs": "FULL_AND_PIECEWISE"},
    "gpt-oss V2 full": {"shape": "gpt-oss", "graphs": "FULL_AND_PIECEWISE", "v2": True},
    "gpt-oss V1 full, across": {"shape": "gpt-oss", "graphs": "FULL_AND_PIECEWISE", "across": "torch"},
    "gpt-oss V1 drafts": {"shape": "gpt-oss", "graphs": "FULL_AND_PIECEWISE", "drafts": 3},
    "gpt-oss V1 eagle3": {"shape": "gpt-oss", "graphs": "FULL_AND_PIECEWISE", "drafts": 3, "eagle3": True},
    "gpt-oss V2 eagle3": {"shape": "gpt-oss", "graphs": "FULL_AND_PIECEWISE", "drafts": 3, "eagle3": True, "v2": True},
    "gpt-oss V2 eagle3, coverage": {
        "shape": "gpt-oss",
        "graphs": "FULL_AND_PIECEWISE",
        "drafts": 3,
        "eagle3": True,
        "v2": True,
        "policy": COVERAGE,
    },
    "qwen3 V1 eager": {"shape": "qwen3", "eager": True},
    "qwen3 V1 full, not compiled": {"shape": "qwen3", "graphs": "FULL_DECODE_ONLY", "mode": 0},
    "qwen3 V1 piecewise": {"shape": "qwen3", "graphs": "PIECEWISE"},
    "qwen3 V1 full": {"shape": "qwen3", "graphs": "FULL_AND_PIECEWISE"},
    "qwen3 V2 full": {"shape": "qwen3", "graphs": "FULL_AND_PIECEWISE", "v2": True},
    "qwen3 V1 full, across": {"shape": "qwen3", "graphs": "FULL_AND_PIECEWISE", "across": "torch"},
    "qwen3 V1 full, across vLLM's NCCL": {"shape": "qwen3", "graphs": "FULL_AND_PIECEWISE", "across": "vllm"},
    "qwen3 V2 full, across": {"shape": "qwen3", "graphs": "FULL_AND_PIECEWISE", "across": "torch", "v2": True},
    "qwen3 V1 full, in host memory": {"shape": "qwen3", "graphs": "FULL_AND_PIECEWISE", "host": True},
    "qwen3 V2 full, in host memory": {"shape": "qwen3", "graphs": "FULL_AND_PIECEWISE", "v2": True, "host": True},
    "deepseek V1 eager": {"shape": "deepseek", "eager": True, "apart": True},
    "deepseek V1 full": {"shape": "deepseek", "graphs": "FULL_AND_PIECEWISE", "apart": True},
    "deepseek V2 full": {"shape": "deepseek", "graphs": "FULL_AND_PIECEWISE", "apart": True, "v2": True},
    "deepseek, no groups, V1 full": {"shape": "no groups", "graphs": "FULL_AND_PIECEWISE", "apart": True},
}


def engine(case: dict[str, Any], tiny: bool, folder: Path) -> Any:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(bool(case.get("v2"))))
    from lib.model_shapes import eagle3_head, write
    from vllm import LLM

    if case.get("across"):
        take_path_of_several(case["across"] == "vllm" and not tiny)
    elif case.get("apart"):
        record_rows()
    else:
        record_routing()
    shape = shape_of(case["shape"], tiny)
    policy: dict[str, Any] = {"warmup": 1, "batch_budget": 8 if tiny else 24}
    if case.get("drafts"):
        policy = case.get("policy", {"warmup": 1, "request_budget": 4})
    options: dict[str, Any] = {"dtype": "float32"} if tiny else {}
    if case.get("host") and not tiny:
        options |= {"cpu_offload_gb": 8, "cpu_offload_params": {"experts"}}
    # Code compiled for a CPU leaves out what RecordingHook does.
    if case.get("eager") or (tiny and (case.get("across") or case.get("apart"))):
        options["enforce_eager"] = True
    elif not tiny:
        options["compilation_config"] = {"cudagraph_mode": case["graphs"], "max_cudagraph_capture_size": 64}
        if "mode" in case:
            options["compilation_config"]["mode"] = case["mode"]
    if case.get("drafts"):
        drafter = {"method": "custom_class", "model": "xshare.engines.vllm.drafter.FixedDrafter"}
        if case.get("eagle3"):
            drafter = {"method": "eagle3", "model": str(write(eagle3_head(shape), folder / "eagle3"))}
        options["speculative_config"] = drafter | {"num_speculative_tokens": case["drafts"]}
        if not tiny:
            options["speculative_config"] |= {
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_length": 2.5,
            }
    return LLM(
        model=str(write(shape, folder / "model")),
        load_format="xshare_dummy",
        model_loader_extra_config={"skew": 0.5, "correlation": 0.5},
        skip_tokenizer_init=True,
        max_model_len=512,
        max_num_seqs=64,
        gpu_memory_utilization=0.1,
        kv_cache_memory_bytes=1 << 30,
        additional_config={"xshare": policy | {"metrics": {"every": 1}}},
        **options,
    )


def shape_of(name: str, tiny: bool) -> dict[str, Any]:
    """Four layers. Those of DeepSeek have narrow experts, so that several engines fit a GPU."""
    from lib.model_shapes import deepseek_v3, gpt_oss_120b, qwen3_30b_a3b

    if name in ("gpt-oss", "qwen3"):
        return gpt_oss_120b(4, tiny) if name == "gpt-oss" else qwen3_30b_a3b(4, tiny)
    narrow = deepseek_v3(4, tiny)
    narrow |= {} if tiny else {"moe_intermediate_size": 128, "intermediate_size": 1024}
    return narrow | ({"n_group": 1, "topk_group": 1} if name == "no groups" else {})


def state_of(llm: Any) -> Any:
    worker = llm.llm_engine.model_executor.driver_worker
    return getattr(worker, "worker", worker).model_runner.xshare


def generate(llm: Any, batch: int, tokens: int = 8, protected: int = 0) -> list[list[int]]:
    """Greedy tokens of a batch. The first `protected` requests are protected."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": [(257 * (7 * i + j) + 3) % 4000 for j in range(8)]} for i in range(batch)]
    kinds = ["exact"] * protected + ["shared"] * (batch - protected)
    params = [
        SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, extra_args={"xshare": kind})
        for kind in kinds
    ]
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]


def run_case(name: str, tiny: bool) -> dict[str, Any]:
    case = CASES[name]
    result: dict[str, Any] = {"rows": [], "tokens": {}, "sizes": {}}

    def check(what: str, passed: bool, detail: str) -> None:
        result["rows"].append({"check": f"{name}: {what}", "passed": bool(passed), "detail": detail})

    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        llm = engine(case, tiny, Path(folder))
        state = state_of(llm)
        paths = sorted({f"{layer.site.path}/{layer.mode}" for layer in state.layers})
        check("attached", len(state.layers) == 4, f"{len(state.layers)} of 4 layers, {', '.join(paths)}")
        if case.get("across"):
            between = state.ranks.add_up.__name__ if state.ranks is not None else "nothing"
            check("takes the path of several ranks", state.ranks is not None, f"in between: {between}")
        elif not tiny and not case.get("apart"):
            routed = state.snapshot()["routed_layers"]
            check("routed in one launch", routed == 4, f"{routed} of 4 layers")
        if case.get("host") and not tiny:
            # vLLM 0.26's V2 runner takes the option and keeps them on the GPU; the start says so.
            expected = 0 if case.get("v2") and vllm_version().startswith("0.26.") else 4
            what = "experts are in host memory" if expected else "its V2 runner keeps experts on the GPU, and says so"
            check(what, state.host_layers == expected, f"those of {state.host_layers} of 4 layers are in host memory")
        witness = Witness(state)
        witness.take()  # drop what the engine's warm-up left
        drafts = case.get("drafts", 0)
        for batch in (4, 5, 7) if drafts else BATCHES:
            llm.reset_prefix_cache()
            before = state.stats()
            tokens = generate(llm, batch)
            compared, differ, sizes = witness.take()
            after = state.stats()
            pruned = after["steps_pruned"] - before["steps_pruned"]
            prefills = after["steps_bypassed"].get("prefill", 0) - before["steps_bypassed"].get("prefill", 0)
            detail = f"{compared} sets over {pruned} decode steps, {differ} differ; {prefills} prefill steps bypassed"
            check(f"S equals the reference, batch {batch}", compared > 0 and not differ and prefills > 0, detail)
            result["tokens"][str(batch)], result["sizes"][str(batch)] = tokens, sizes
        llm.reset_prefix_cache()
        before = state.stats()["steps_pruned"]
        requests = 5 if drafts else 9  # more than the budget holds
        generate(llm, requests, protected=2)
        compared, differ, _ = witness.take()
        pruned = state.stats()["steps_pruned"] - before
        detail = (
            f"{compared} sets over {pruned} decode steps of {requests} requests, 2 of them protected, {differ} differ"
        )
        check("S with protected requests equals the reference", compared > 0 and not differ, detail)
        detail = f"{witness.routed} layers of steps, {witness.misrouted} differ"
        by_rows = case.get("across") or case.get("apart")
        if not by_rows and not tiny:
            what = "ids, weights and tables have the bits of vLLM's own routing"
            check(what, witness.routed > 0 and not witness.misrouted, f"{detail}; {witness.padded} had rows that pad")
        elif by_rows and paths[0].startswith("router"):
            check("rows have the reference's experts and weights", witness.routed > 0 and not witness.misrouted, detail)
        if not drafts:
            guarded = generate(llm, 16, protected=PROTECTED)
            witness.take()
            experts = state.layers[0].site.num_experts
            llm.collective_rpc("xshare_set", args=(f"k0=1,m={experts}",))
            state.gates = state.gates.model_copy(update={"bypass": False})  # so that selection really runs
            everything = generate(llm, 16)
            ran = witness.take()[0]
            llm.collective_rpc("xshare_switch", args=(False,))
            native = generate(llm, 16)
            same = sum(a == b for a, b in zip(everything, native, strict=True))
            pruned_differ = sum(a != b for a, b in zip(result["tokens"]["16"], native, strict=True))
            check("a budget of N gives the native tokens", same == 16 and ran > 0, f"{same} of 16, {ran} sets chosen")
            check("the policy's does not", pruned_differ > 0, f"{pruned_differ} of 16 differ from native")
            smaller = generate(llm, 8)
            same_protected, same_native = (
                sum(a == b for a, b in zip(served[:PROTECTED], native, strict=False)) for served in (guarded, smaller)
            )
            detail = f"{same_protected} of {PROTECTED}; of native routing in a batch of 8, {same_native}: "
            detail += "what batch size alone changes"
            check("protected requests give native's tokens in a batch of 16", same_protected >= same_native, detail)
        result["seconds"] = time.monotonic() - begun
    return result


def compare(results: dict[str, dict[str, Any]]) -> list[Row]:
    """Graph modes and runners of one shape against each other: the same numbers of experts, the same tokens."""
    rows: list[Row] = []
    for shape in ("gpt-oss", "qwen3", "deepseek"):
        for first_name, second_name in SAME:
            first, second = results.get(f"{shape} {first_name}"), results.get(f"{shape} {second_name}")
            if not (first and second and first["tokens"] and second["tokens"]):
                continue
            same = [
                first["tokens"][batch] == second["tokens"][batch] and first["sizes"][batch] == second["sizes"][batch]
                for batch in first["tokens"]
            ]
            detail = f"tokens and |S| of every step and layer alike at {sum(same)} of {len(same)} batch sizes"
            rows.append(
                {"check": f"{shape} {first_name} routes as {second_name}", "passed": all(same), "detail": detail}
            )
    return rows


def main(
    json: Annotated[Path | None, typer.Option(help="Write the rows here.")] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Small shapes, for a machine without a GPU.")] = False,
    case: Annotated[
        str | None, typer.Option(help="Run this case alone, in this process, and print its result.")
    ] = None,
    only: Annotated[str, typer.Option(help="Run the cases whose names contain this.")] = "",
    jobs: Annotated[int, typer.Option(help="Cases at once.")] = 8,
) -> None:
    if case is not None:
        print("RESULT " + json_format.dumps(run_case(case, tiny)))
        return
    names = [name for name in CASES if only in name and not (tiny and CASES[name].get("v2"))]
    running: dict[str, subprocess.Popen[str]] = {}
    results: dict[str, dict[str, Any]] = {}
    rows: list[Row] = []
    while names or running:
        while names and len(running) < jobs:
            name = names.pop(0)
            command = [sys.executable, __file__, "--case", name, *(["--tiny"] if tiny else [])]
            log = open(f"{tempfile.gettempdir()}/{name.replace(' ', '_')}.log", "w")  # noqa: SIM115, PTH123
            running[name] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            time.sleep(0 if tiny else 2)  # engines look at free memory as they start
        for name, process in list(running.items()):
            if process.poll() is None:
                continue
            output = process.stdout.read() if process.stdout is not None else ""
            line = next((line for line in output.splitlines() if line.startswith("RESULT ")), None)
            if line is None:
                results[name] = {"tokens": {}}
                rows.append({"check": f"{name}: ran", "passed": False, "detail": f"exit code {process.returncode}"})
            else:
                results[name] = json_format.loads(line.removeprefix("RESULT "))
                rows += results[name]["rows"]
            del running[name]
        time.sleep(0.2)
    rows += compare(results)
    for row in rows:
        print("ok  " if row["passed"] else "FAIL", row["check"], "|", row["detail"])
    if json is not None:
        import torch
        import vllm

        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        written = Results(json, None, {"gpu": gpu, "vllm": vllm.__version__, "tiny": tiny, "seed": 0}, lists=())
        written.rows = rows
        written.write()
    raise typer.Exit(0 if all(row["passed"] for row in rows) else 1)


if __name__ == "__main__":
    typer.run(main)
