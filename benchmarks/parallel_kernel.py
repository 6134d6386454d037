"""What does it cost to choose one set with other ranks: selection in two halves, and a collective in between?

    python benchmarks/parallel_kernel.py [--json evidence/parallel_kernel.json]

On one GPU, as `kernel.py` measures: a graph of LAYERS layers with selection and one without. The collective is NCCL's
all-reduce over one rank, in the graph: a launch, and no wire. What a wire adds is not in these numbers.

  fused    the kernel of one rank
  halves   in two halves, nothing in between
  across   in two halves, with the all-reduce in between

`bytes` is what a layer's message holds.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated

import torch
import triton
import typer
from kernel import LAYERS, Shape, measure
from torch import Tensor

from xshare.cli.output import number_table, progress_bar, wide_console
from xshare.kernels.launch import FusedSelection
from xshare.kernels.limits import thresholds_of
from xshare.results import Results

SHAPES = [(n, N, k, router) for N, k, router in ((128, 4, "softmax"), (256, 8, "sigmoid")) for n in (1, 16, 64, 256)]
POLICY = "k0=1,m=24"


def one_rank() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", 0))


def nothing(message: Tensor) -> None:
    pass


def all_reduce(message: Tensor) -> None:
    torch.distributed.all_reduce(message)


def main(json: Annotated[Path | None, typer.Option(help="Write the rows here.")] = None) -> None:
    one_rank()
    about = {"gpu": torch.cuda.get_device_name(), "triton": triton.__version__, "layers": LAYERS, "ranks": 1}
    results = Results(json, None, about | {"seed": None}, lists=())
    table = number_table("marginal microseconds a layer (alone)", "router", "n", "N", "fused", "halves", "across")
    with progress_bar("shapes", len(SHAPES)) as advance:
        for n, experts, k, router in SHAPES:
            shape = Shape(n, experts, k, router, POLICY)
            shape.control.set_group(1)
            shape.control.push()
            rows = [measure(shape, "fused", shape.fused)]
            for impl, across in (("halves", nothing), ("across", all_reduce)):
                shape.selection = FusedSelection(
                    num_experts=experts, rows=n, device="cuda", router=shape.spec,
                    thresholds=thresholds_of([shape.policy]), across=across,
                )  # fmt: skip
                assert shape.selection.scratch is not None
                size = {"bytes": shape.selection.scratch.message.nbytes}
                rows.append(measure(shape, impl, shape.fused) | size)
            results.rows += rows
            results.write()
            advance(1)
            table.add_row(router, str(n), str(experts), *(f"{r['marginal_us']:.1f} ({r['us']:.1f})" for r in rows))
    wide_console().print(table)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    typer.run(main)
