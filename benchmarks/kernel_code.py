"""How much code does a selection have, compiled for a GPU, and how many registers does it take?

    python benchmarks/kernel_code.py [--json evidence/kernel_code.json]

Needs no GPU: Triton compiles for NVIDIA's compute capability 9.0 (H100, H200) with the ptxas in its package, on Linux.
Code may matter because a decode step reads hundreds of megabytes between two selections, so that a kernel finds little
of itself in the caches. A row has rows, rows of a request (0: each is a request), the thresholds that code was compiled
for, the kernel and its programs, bytes of code, registers of a thread, and bytes of a thread's stack: what did not fit
the registers.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated, Any

import torch
import triton
import typer
from lib.command import run
from lib.paths import EVIDENCE
from triton.backends.compiler import GPUTarget

from xshare import RouterSpec
from xshare.cli.output import number_table, wide_console
from xshare.kernels import selection as kernels
from xshare.kernels.control import Control
from xshare.kernels.launch import FusedSelection
from xshare.kernels.routing_tables import Tables
from xshare.results import Results, Row

EXPERTS, TOP_K, CAPABILITY = 128, 4, 90
CELLS = [(4, 0), (16, 0), (32, 0), (4, 4), (16, 4), (64, 4)]  # rows, and of a request
THRESHOLDS: dict[str, frozenset[str]] = {
    "none": frozenset(),
    "coverage": frozenset({"coverage"}),
    "all": frozenset({"mass", "coverage", "price"}),
}
ALL_CELLS = EVIDENCE / "kernel_code.json"
KERNELS = ("select_in_one_tile", "select_in_blocks")


class Target:
    """Stands for the driver of a GPU that is not here."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", CAPABILITY, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


class Compiled(Exception):
    """Ends a launch where the kernel would run. args: its name and what was compiled."""


class Compiling:
    """Takes a kernel's place in a launch."""

    def __init__(self, name: str) -> None:
        self.name, self.kernel = name, getattr(kernels, name)

    def __getitem__(self, grid: Any) -> Any:
        def compile_only(**arguments: Any) -> None:
            raise Compiled(self.name, self.kernel.warmup(grid=grid, **arguments))

        return compile_only


def compiled(rows: int, of_request: int, thresholds: frozenset[str]) -> tuple[str, int, bytes]:
    """The kernel's name, its programs and its machine code, as vLLM's path for gpt-oss launches it."""
    selection = FusedSelection(
        num_experts=EXPERTS,
        rows=rows,
        device="cpu",
        router=RouterSpec.softmax(TOP_K),
        rows_per_request=of_request,
        thresholds=thresholds,
        protects=True,  # as a server has it that does not say otherwise
        routes=True,
    )
    # A CPU's plan, but for what a GPU's has.
    selection.plan = dataclasses.replace(selection.plan, on_gpu=True, early=True)
    selection.tables = Tables(selection.plan, EXPERTS, TOP_K, torch.bfloat16, "cpu")
    try:
        selection.launch(torch.zeros(rows, EXPERTS, dtype=torch.bfloat16), Control("cpu"))
    except Compiled as end:
        name, kernel = end.args
        return name, selection.plan.blocks, kernel.asm["cubin"]
    raise AssertionError("no kernel was launched")


def figures(code: bytes) -> Row:
    """Bytes of code, registers and stack."""
    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        usage, listing = (
            subprocess.run([tools / "cuobjdump", what, file.name], check=True, capture_output=True, text=True).stdout
            for what in ("-res-usage", "-sass")
        )
    facts = {name: int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK")}  # type: ignore[index]
    instructions = len(re.findall(r"/\*[0-9a-f]{4,}\*/\s+[A-Z@]", listing))
    return {"code_bytes": 16 * instructions, "registers": facts["REG"], "stack_bytes": facts["STACK"]}


def main(
    rows: Annotated[list[int] | None, typer.Option(help="Only these, into a file of their own; repeatable.")] = None,
    json: Annotated[Path, typer.Option(help="Results.")] = ALL_CELLS,
) -> None:
    cells = [cell for cell in CELLS if not rows or cell[0] in rows]
    if unknown := set(rows or []) - {count for count, _ in CELLS}:
        raise typer.BadParameter(f"--rows takes {sorted({count for count, _ in CELLS})}, not {sorted(unknown)}")
    if rows and json == ALL_CELLS:
        raise typer.BadParameter(f"{ALL_CELLS.name} has all rows: name another file with --json")
    triton.runtime.driver.set_active(Target())
    for name in KERNELS:
        setattr(kernels, name, Compiling(name))
    about = {"triton": triton.__version__, "capability": CAPABILITY, "experts": EXPERTS, "top_k": TOP_K, "seed": None}
    results = Results(json, None, about, lists=())
    table = number_table("compiled", "rows", "of a request", "thresholds", "kernel", "KB", "registers", "stack")
    for count, of_request in cells:
        for thresholds, which in THRESHOLDS.items():
            name, programs, code = compiled(count, of_request, which)
            row: Row = {
                "rows": count,
                "each": of_request,
                "thresholds": thresholds,
                "kernel": name,
                "programs": programs,
            }
            row |= figures(code)
            results.rows.append(row)
            kilobytes = f"{row['code_bytes'] / 1000:.1f}"
            texts = (str(count), str(of_request), thresholds, name, kilobytes)
            table.add_row(*texts, str(row["registers"]), str(row["stack_bytes"]))
    results.write()
    wide_console().print(table)
    wide_console().print(f"results: {json}")


if __name__ == "__main__":
    run(main)
