"""What selection costs and gains inside vLLM: plain vLLM, the no-op control and policies, paired and interleaved.

    python benchmarks/vllm_speed.py [--drafts 3] [--batch 16 --batch 32 --batch 4] [--json evidence/vllm_speed.json]

Two engines with the same random weights (`xshare_dummy`: this measures speed, not quality) stay loaded side by side:
one without the plugin, one with it, whose policy is changed live. They decode in turns, so that a slow spell of the
machine hits both. A decode is a fixed batch; its time runs from the step after the last first token to the end. The
control is selection with a budget of N, bypasses off: it really runs, and keeps everything. Ratios are medians of the
pairs with bootstrap 95 % intervals. `predicted` is what `step = a + b * active experts` gives, fitted to the policies
that are not being predicted. `--presence` leaves the xshare key out of the second engine: what the plugin costs those
who do not use it. With drafts acceptance is synthetic, so accepted lengths say nothing about quality.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # this folder: in it, select.py would stand in for the standard library's `select`

import json as json_format
import os
import random
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from xshare.results import Row, provenance, write_result
from xshare.statistics import median_interval

PROMPT = 16  # tokens: a batch of 32 is prefilled in one step, so that its requests end together
UNUSED = "no key"
RUN = ("batch", "drafts", "skew", "correlation", "presence")  # what is measured in one go, and replaced as one
CONTROLS = 3  # pairs of the control for one of a policy
HERE = Path(__file__).resolve().parent
POLICIES = ["k0=1,m=0", "k0=1,m=12", "k0=1,m=24", "k0=1,m=32", "k0=1,m=48", "k0=1,m=64"]
DRAFT_POLICIES = ["k0=1,m=0,mr=2", "k0=1,m=0,mr=3", "k0=1,m=0,mr=4", "k0=1,m=0,mr=6", "k0=2,m=0,mr=4", "k0=1,m=32"]


class Engine:
    """An engine in a process of its own, told what to decode."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        environment = os.environ | ({} if options["plugin"] else {"VLLM_PLUGINS": ""})
        log = open(f"{tempfile.gettempdir()}/vllm_speed_{name}.log", "w")  # noqa: SIM115, PTH123
        command = [sys.executable, __file__, "--child", json_format.dumps(options)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1, env=environment
        )

    def ask(self, **what: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json_format.dumps(what) + "\n")
        return self.answer()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("RESULT "):
                return json_format.loads(line.removeprefix("RESULT "))
        raise SystemExit(f"an engine ended with code {self.process.wait()}; its log is in {tempfile.gettempdir()}")


def serve(options: dict[str, Any]) -> None:
    """The child: an engine that decodes what it reads from its input."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    sys.path.append(str(HERE))
    from shapes import gpt_oss_120b, write
    from vllm import LLM

    if not options["plugin"]:  # the weights all the same
        from xshare.engines.vllm.dummy import register_dummy_loader

        register_dummy_loader()
    tiny, drafts = options["tiny"], options["drafts"]
    more: dict[str, Any] = {"dtype": "float32", "enforce_eager": True} if tiny else {}
    if drafts:
        more["speculative_config"] = {
            "method": "custom_class",
            "model": "xshare.engines.vllm.drafter.FixedDrafter",
            "num_speculative_tokens": drafts,
        }
        if not tiny:
            more["speculative_config"] |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5}
    if options["xshare"] is not None:
        more["additional_config"] = {"xshare": options["xshare"]}
    with tempfile.TemporaryDirectory() as folder:
        llm = LLM(
            model=str(write(gpt_oss_120b(options["layers"], tiny), Path(folder))),
            load_format="xshare_dummy",
            model_loader_extra_config=options["weights"],
            skip_tokenizer_init=True,
            max_model_len=1024,
            max_num_seqs=64,
            max_num_batched_tokens=512,  # two engines share the memory of one GPU
            compilation_config={} if tiny else {"cudagraph_capture_sizes": options["sizes"]},
            gpu_memory_utilization=0.45,
            kv_cache_memory_bytes=1 << 30,
            enable_prefix_caching=False,
            disable_log_stats=True,
            seed=0,
            **more,
        )
    print("RESULT true", flush=True)
    for line in sys.stdin:
        what = json_format.loads(line)
        if "policy" in what:
            found: Any = llm.collective_rpc("xshare_set", args=(what["policy"],))
        elif "stats" in what:
            found = llm.collective_rpc("xshare_stats")[0]
        else:
            found = decode(llm.llm_engine, what["batch"], what["tokens"], what["seed"])
        print("RESULT " + json_format.dumps(found), flush=True)


def decode(engine: Any, batch: int, tokens: int, seed: int) -> dict[str, float]:
    """Decode a batch of random prompts -> seconds, steps and tokens, after every request has its first token."""
    from vllm import SamplingParams

    rng = random.Random(seed)
    vocab = engine.model_config.get_vocab_size()
    for number in range(batch):
        params = SamplingParams(temperature=1.0, max_tokens=tokens, ignore_eos=True, detokenize=False, seed=None)
        prompt = {"prompt_token_ids": [rng.randrange(vocab) for _ in range(PROMPT)]}
        engine.add_request(f"{seed}-{number}", prompt, params)
    have: dict[str, int] = {}
    begun, at_begin, steps = 0.0, 0, 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            have[output.request_id] = len(output.outputs[0].token_ids)
        steps += 1
        if not begun and len(have) == batch:
            begun, at_begin, steps = time.perf_counter(), sum(have.values()), 0
    return {"seconds": time.perf_counter() - begun, "steps": steps, "tokens": sum(have.values()) - at_begin}


def measure(
    plain: Engine,
    with_it: Engine,
    batch: int,
    drafts: int,
    control: str,
    policies: list[str],
    tokens: int,
    repeats: int,
) -> list[Row]:
    policies = [control, *policies]
    for engine in (plain, with_it):
        engine.ask(batch=batch, tokens=16, seed=0)  # warm
    times: dict[str, list[dict[str, Any]]] = {"plain": [], **{policy: [] for policy in policies}}
    for repeat in range(CONTROLS * repeats):
        order = policies if repeat % 2 == 0 else policies[::-1]
        for policy in order if repeat < repeats else [control]:  # the control decides about one percent: more pairs
            if control != UNUSED:
                with_it.ask(policy=policy)
            with_it.ask(batch=batch, tokens=8, seed=1)
            pair = [("plain", plain), (policy, with_it)]
            for name, engine in pair if repeat % 2 == 0 else pair[::-1]:
                found = engine.ask(batch=batch, tokens=tokens, seed=2 + repeat)
                times[name].append(found | {"partner": policy, "repeat": repeat})
    active: dict[str, Any] = {}
    for policy in policies if control != UNUSED else []:
        with_it.ask(policy=policy)
        for _ in range(6):
            with_it.ask(batch=batch, tokens=tokens, seed=7)
        active[policy] = with_it.ask(stats=True)
    return rows_of(times, active, batch, drafts, control)


def rows_of(
    times: dict[str, list[dict[str, Any]]], active: dict[str, Any], batch: int, drafts: int, control: str
) -> list[Row]:
    step_ms = {name: median(t["seconds"] / t["steps"] * 1000 for t in found) for name, found in times.items()}
    mean = {name: np.mean(found["experts_active"]) for name, found in active.items()}
    native = float(np.mean(active[control]["experts_native"])) if active else None
    plain = {(t["partner"], t["repeat"]): t for t in times["plain"]}
    rows: list[Row] = []
    for policy, found in times.items():
        ratios = [
            (t["tokens"] / t["seconds"])
            / (plain[policy, t["repeat"]]["tokens"] / plain[policy, t["repeat"]]["seconds"])
            for t in found
            if policy != "plain"
        ] or [1.0]
        step_ratios = [
            (plain[policy, t["repeat"]]["seconds"] / plain[policy, t["repeat"]]["steps"]) / (t["seconds"] / t["steps"])
            for t in found
            if policy != "plain"
        ] or [1.0]
        ratio, low, high = median_interval(step_ratios)
        row: Row = {"batch": batch, "drafts": drafts, "policy": policy, "method": "xshare"}
        if policy == "plain":
            row["method"] = "plain"
        if policy == control:
            row["method"] = "unused" if control == UNUSED else "noop"
        row |= {"otps": median(t["tokens"] / t["seconds"] / batch for t in found), "step_ms": step_ms[policy]}
        row |= {"ratio": ratio, "ratio_low": low, "ratio_high": high, "token_ratio": median(ratios)}
        row |= {"active": float(mean[policy]) if policy in mean else native, "active_native": native, "predicted": None}
        others = [name for name in active if name != policy]
        if policy in active and policy != control:
            slope, base = np.polyfit([mean[name] for name in others], [step_ms[name] for name in others], 1)
            # the gain over the control that the experts saved should bring
            row["predicted"] = float((base + slope * mean[control]) / (base + slope * mean[policy]))
            row["realised"] = step_ms[control] / step_ms[policy]
        rows.append(row)
    return rows


def main(
    batch: Annotated[list[int], typer.Option(help="Requests in the batch; may be repeated.")] = [16, 32, 4],  # noqa: B006
    drafts: Annotated[int, typer.Option(help="Drafts a request and step.")] = 0,
    layers: Annotated[int, typer.Option(help="Layers of the model.")] = 36,
    tokens: Annotated[int, typer.Option(help="Tokens of a decode.")] = 96,
    repeats: Annotated[int, typer.Option(help="Pairs of each policy.")] = 5,
    skew: Annotated[float, typer.Option(help="Popularity skew of the random router.")] = 0.5,
    correlation: Annotated[float, typer.Option(help="How alike a request's tokens route.")] = 0.5,
    json: Annotated[Path | None, typer.Option(help="Write the rows here; those of other runs in it are kept.")] = None,
    presence: Annotated[bool, typer.Option("--presence", help="Only the plugin without its key.")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="A small shape, for a machine without a GPU.")] = False,
    child: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    if child is not None:
        serve(json_format.loads(child))
        return
    experts = 32 if tiny else 128
    options = {"tiny": tiny, "drafts": drafts, "layers": layers, "weights": {"skew": skew, "correlation": correlation}}
    options["sizes"] = sorted({size * (1 + drafts) for size in batch})
    budget = None if presence else {"warmup": 1, "batch_budget": experts, "gates": {"bypass": False}}
    plain = Engine("plain", options | {"plugin": False, "xshare": None})
    with_it = Engine("xshare", options | {"plugin": True, "xshare": budget})
    for engine in (plain, with_it):
        engine.answer()
    control, policies = f"k0=1,m={experts}", DRAFT_POLICIES if drafts else POLICIES
    if presence:
        control, policies = UNUSED, []
    rows: list[Row] = []
    for size in batch:
        found = measure(plain, with_it, size, drafts, control, policies, tokens, repeats)
        rows += [row | {"skew": skew, "correlation": correlation, "presence": presence} for row in found]
        for row in (row for row in rows if row["batch"] == size):
            text = (
                f"batch {row['batch']} drafts {drafts} {row['method']:7} {row['policy']:14} {row['step_ms']:7.3f} ms "
            )
            text += f"ratio {row['ratio']:.3f} [{row['ratio_low']:.3f}, {row['ratio_high']:.3f}] "
            if row["active_native"]:
                text += f"active {row['active']:.1f} of {row['active_native']:.1f}"
            if row["predicted"]:
                text += f" predicted {row['predicted']:.3f} realised {row['realised']:.3f}"
            print(text, flush=True)
        if json is not None:
            import torch
            import vllm

            gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
            stamp = provenance(gpu=gpu, vllm=vllm.__version__, shape="gpt-oss-120b", layers=layers, seed=0)
            earlier = json_format.loads(json.read_text())["rows"] if json.exists() else []
            again = {tuple(row[name] for name in RUN) for row in rows}
            kept = [row for row in earlier if tuple(row[name] for name in RUN) not in again]
            write_result(json, kept + rows, stamp)
    for engine in (plain, with_it):
        engine.process.kill()


if __name__ == "__main__":
    typer.run(main)
