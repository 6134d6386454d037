"""Experts in host memory: does a step take as long as reading its experts over the bus?

    python benchmarks/offload.py [--json evidence/offload.json]

Qwen3-30B-A3B's shape in bfloat16 with random weights (`xshare_dummy`, routing `carried` of fit_routing.py: this
measures speed, not quality). All 57 GB of experts are in host memory (`--cpu-offload-gb 60 --cpu-offload-params
experts`), where the GPU reads those that a step needs. One engine with full CUDA graphs; native and the policies in
turns on the same requests. Native is selection switched off live, in the same graph: its few microseconds do not show
in steps of a tenth of a second and more.

A ratio is native's step time over the policy's: the median over pairs with a bootstrap 95 % interval, or the range of
fewer than six pairs. `gbps` is the bytes of the loaded experts over the whole step's time. `expected` is the ratio if a
step took exactly as long as reading its experts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from lib.engine_process import Engine
from lib.model_shapes import expert_bytes, qwen3_30b_a3b
from lib.paths import EVIDENCE
from lib.routing_fits import fits
from lib.speed_rows import Counted

from xshare.cli.output import number_table, progress_bar, wide_console
from xshare.policy import PRESETS, RECOMMENDED
from xshare.progress import Advance
from xshare.results import Results, Row
from xshare.results.columns import count_of
from xshare.statistics import interval_names, median_interval

REGIME = "carried"
WARM = 2  # steps


def policies_for(experts: int) -> dict[str, str]:
    """By name: native, the no-op control (it selects and keeps all), and the presets."""
    return {"native": "native", "noop": f"k0=1,m={experts}"} | {name: str(PRESETS[name]) for name in RECOMMENDED}


def measure(
    engine: Engine, batch: int, steps: int, repeats: int, policies: dict[str, str], advance: Advance
) -> Iterator[tuple[dict[str, list[float]], dict[str, Counted]]]:
    """After every repeat, since repeats take long: ms per step of every decode so far, and the counts, by policy."""
    ms: dict[str, list[float]] = {name: [] for name in policies}
    counted: dict[str, list[Row]] = {name: [] for name in policies}
    engine.ask("decode", batch=batch, steps=WARM, seed=0)
    for repeat in range(repeats):
        for name in policies if repeat % 2 == 0 else reversed(policies):
            engine.ask("policy", policy=policies[name])
            decoded = engine.ask("decode", batch=batch, steps=steps, seed=1 + repeat)
            ms[name].append(1000 * decoded["seconds"] / decoded["steps"])
            counted[name].append(engine.ask("counted", batch=batch))
            advance(1)
        yield ms, {name: Counted.of(counts) for name, counts in counted.items()}


def rows_of(setting: Row, ms: dict[str, list[float]], counted: dict[str, Counted], bytes_each: float) -> list[Row]:
    """`bytes_each`: of one expert in all layers together."""
    native = median([counts.native for counts in counted.values() if counts.native is not None])
    rows = []
    for name, times in ms.items():
        active = native if name in ("native", "noop") else counted[name].active
        ratio, low, high = median_interval([a / b for a, b in zip(ms["native"], times, strict=True)])
        rows.append(
            setting
            | {"policy": name, "active": active, "active_native": native, "ms": median(times)}
            | {"ratio": ratio, "ratio_low": low, "ratio_high": high, "expected": native / active if active else None}
            | {"gbps": active * bytes_each / median(times) / 1e6 if active else None, "samples_ms": times}
        )
    return rows


def show(rows: Sequence[Row]) -> None:
    within, marks = interval_names([count_of(row, "ratio") for row in rows])
    table = number_table("", "policy", "batch", "experts", "ms a step", "faster", within, "by experts", "GB/s")
    for row, mark in zip(rows, marks, strict=True):
        table.add_row(
            row["policy"],
            str(row["batch"]),
            f"{row['active']:.1f}",
            f"{row['ms']:.0f}",
            f"{row['ratio']:.2f}x",
            f"{row['ratio_low']:.2f} to {row['ratio_high']:.2f}{mark}",
            f"{row['expected']:.2f}x",
            f"{row['gbps']:.1f}",
        )
    wide_console().print(table)


def main(
    batch: Annotated[list[int] | None, typer.Option(help="Requests; may be repeated.")] = None,
    layers: Annotated[int, typer.Option(help="48, which is all; fewer for a machine with less memory.")] = 48,
    steps: Annotated[int, typer.Option(help="Steps of a timed decode.")] = 5,
    repeats: Annotated[int, typer.Option(help="Decodes of each policy.")] = 4,
    runner: Annotated[str, typer.Option(help="vLLM's model runner, V1 or V2.")] = "V1",
    json: Annotated[Path, typer.Option(help="Results; cells already in it are skipped.")] = EVIDENCE / "offload.json",
    tiny: Annotated[bool, typer.Option("--tiny", help="A small shape, for a machine without a GPU.")] = False,
) -> None:
    batches = batch or [16, 4, 32]
    shape = qwen3_30b_a3b(layers, tiny)
    experts = shape["num_experts"]
    policies = policies_for(experts)
    bytes_each = layers * expert_bytes(shape)
    options: Row = {"tiny": tiny, "layers": layers, "drafter": "none", "drafts": 0, "runner": runner, "rule": "xshare"}
    options |= {"shape": "qwen3-30b-a3b", "weights": fits()[REGIME], "sizes": sorted(batches), "every": 1}
    options |= {
        "offload": 1 + bytes_each * experts / 2**30,
        "compilation": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
    }
    options["xshare"] = {"policy": str(PRESETS["balanced"]), "live": "any", "gates": {"bypass": False}}
    began = time.perf_counter()
    with Engine("offload", options) as engine:
        about: Row = engine.answer() | {"regime": REGIME, "layers": layers, "expert_bytes": bytes_each}
        about |= {"tiny": tiny, "bus_gbps": engine.ask("bus"), "host_layers": engine.ask("host_layers")}
        print(f"started in {time.perf_counter() - began:.0f} s: {about}", flush=True)
        results = Results(json, {"tiny": tiny, "shape": options["shape"], "regime": REGIME, "layers": layers}, about)
        measured = {(row["batch"], row["runner"]) for row in results.rows if len(row["samples_ms"]) >= repeats}
        for size in (size for size in batches if (size, runner) not in measured):
            with progress_bar(f"batch {size}", repeats * len(policies)) as advance:
                for ms, counted in measure(engine, size, steps, repeats, policies, advance):
                    rows = rows_of({"batch": size, "runner": runner}, ms, counted, bytes_each)
                    results.put(rows, by=("batch", "runner", "policy"))
                    results.write()
            show(rows)
    print(f"results: {json}, {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    typer.run(main)
