"""Decoding on a CPU: what do the presets cost nano, which gains nothing by them, and how long do small products take?

    python benchmarks/cpu_decode.py

nano fits into a cache, so loading fewer experts saves next to nothing, and the cost of selection shows: native routing,
with nothing attached, and the presets take turns. A step's products have few rows per expert. The second part times one
product by its number of rows, with oneDNN and without, beside reading the weights, which is the least it can take.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated

import typer
from lib.command import run

from xshare.bench.speedups import compare_speeds
from xshare.cli.output import number_table, progress_bar, wide_console
from xshare.engines.by_name import open_engine
from xshare.policy import RECOMMENDED, Policy
from xshare.quality.answering import ordered
from xshare.quality.task_files import built_in
from xshare.results import Results, Row, check_replaceable
from xshare.statistics import interval_names
from xshare.tune.cpu_products import HIDDEN, WIDTH, product_ms

ROWS = (1, 2, 3, 4, 6, 8, 9, 12, 16)


def main(
    batch: Annotated[int, typer.Option(min=2, help="Questions decoded together.")] = 16,
    steps: Annotated[int, typer.Option(min=2)] = 40,
    repeats: Annotated[int, typer.Option(min=1, help="Of each, in turns.")] = 15,
    json: Annotated[Path, typer.Option(help="Results.")] = Path("evidence/cpu_decode.json"),
) -> None:
    check_replaceable(json)
    engine = open_engine("transformers", "nano")
    policies = {name: Policy.parse(name) for name in RECOMMENDED}
    prompts = [engine.encode(task.prompt) for task in ordered(built_in(2), mixed=True)[:batch]]
    with progress_bar("nano", (repeats + 1) * (1 + len(policies))) as advance:
        rows = compare_speeds(
            engine, policies, batch=batch, prompts=prompts, steps=steps, repeats=repeats, advance=advance
        )
    # Under names of its own: this is what selection costs a model that gains nothing, no speed to choose a policy by.
    rows = [{spelled_times(name): value for name, value in row.items()} for row in rows]
    products: list[Row] = []
    for count in ROWS:
        row: Row = {"rows": count}
        for name, on in (("onednn", True), ("without", False)):
            ms = product_ms(count, on)
            row |= {f"{name}_ms": ms, f"{name}_gbps": 4 * HIDDEN * WIDTH / ms / 1e6}
        products.append(row)
    results = Results(json, None, {"machine": platform.machine(), "processor": processor(), "seed": 0}, lists=())
    results.rows = rows + products
    results.write()
    within, _ = interval_names([repeats])
    table = number_table(f"nano, {batch} rows", "policy", "experts", "ms a step", "times native", within)
    for row in rows:
        interval = f"{row['times_low']:.2f} to {row['times_high']:.2f}"
        table.add_row(row["policy"], f"{row['active']:.1f}", f"{row['ms']:.1f}", f"{row['times']:.2f}x", interval)
    wide_console().print(table)
    table = number_table(f"products with {4 * HIDDEN * WIDTH / 1e6:.0f} MB", "rows", "oneDNN ms", "without ms")
    for row in products:
        table.add_row(str(row["rows"]), f"{row['onednn_ms']:.2f}", f"{row['without_ms']:.2f}")
    wide_console().print(table)


def spelled_times(name: str) -> str:
    return name.replace("ratio", "times").replace("step_ms", "ms")


def processor() -> str:
    """The processor's name as Linux has it, or as Python's platform module does."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    run(main)
