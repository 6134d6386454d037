"""What does selection cost on a GPU, on top of the router it sits in?

    python benchmarks/kernel.py [--json evidence/kernel.json]
    python benchmarks/kernel.py --earlier evidence/kernel.json --plot docs/plots/kernel.svg

A graph of LAYERS layers of [router GEMM -> selection -> score + top-k] is replayed, and the same without selection; the
difference over LAYERS is `marginal_us`. `us` is the selection alone, replayed back to back. Medians of interleaved
replays; `spread_us` is the middle half of the paired differences.

  floor      an empty kernel instead of selection: what any launch costs
  reference  the torch implementation, captured
  compiled   the same under torch.compile (10 s of compilation per shape; --compile 0 leaves it out)
  fused      the kernel as a server with that policy compiles it, gate open; with groups of experts two, one to select
             and one that corrects the ids and weights of the engine's router
  fused-any  as a server compiles it that may change to any policy (`live: any`)
  fused-off  the kernel, gate closed

--cold reads 128 MiB before every router GEMM, as a model's experts do, so that neither the control nor the kernel is in
the cache.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from json import loads as read_json
from pathlib import Path
from typing import Annotated

import torch
import triton
import typer
from torch import Tensor

from xshare import BatchLayout, Placement, Policy, RouterSpec
from xshare.cli.output import number_table, progress_bar, wide_console
from xshare.kernels.control import Control
from xshare.kernels.launch import FusedSelection
from xshare.kernels.limits import THRESHOLDS, thresholds_of
from xshare.methods import decide_routing
from xshare.report.plot import check_plot, plot_kernel
from xshare.results import Results, Row
from xshare.routing import prepare_step

LAYERS, REPLAYS, HIDDEN = 24, 80, 2880
ROWS = (1, 4, 16, 64, 256)
SIZES = ((32, 4), (64, 8), (128, 4), (128, 8), (256, 8), (384, 8))
POINT = ("n", "experts", "k", "router", "policy", "cost")
Call = Callable[[Tensor], object]
Point = tuple[int, int, int, str, str, bool]  # the last: with a cost table


@triton.jit
def nothing(x):  # type: ignore[no-untyped-def]
    pass


class Shape:
    """One point of the grid: a router of N experts, n rows, and a policy."""

    def __init__(
        self, n: int, experts: int, k: int, router: str, policy: str, cost: bool = False, cold: bool = False
    ) -> None:
        self.n, self.experts, self.k, self.router, self.cost = n, experts, k, router, cost
        self.policy = Policy.parse(policy)
        self.bias = torch.randn(experts, device="cuda") * 0.1
        self.grouped = router == "grouped"  # a sigmoid router with DeepSeek-V3's groups
        groups, kept = (8, 4) if self.grouped else (1, 1)
        sigmoid = RouterSpec.sigmoid(k, correction_bias=self.bias, n_group=groups, topk_group=kept)
        self.spec = RouterSpec.softmax(k) if router == "softmax" else sigmoid
        rows_per_request = 4 if self.policy.request_budget else 0
        self.starts = list(range(0, n + 1, rows_per_request)) if rows_per_request else None
        requests = torch.arange(n, device="cuda") // max(1, rows_per_request)
        self.layout, self.placement = BatchLayout(requests), Placement(torch.zeros(experts).long().cuda(), 1)
        self.hidden = torch.randn(n, HIDDEN, device="cuda", dtype=torch.bfloat16)
        scale = 2 / HIDDEN**0.5
        self.weights = [
            torch.randn(experts, HIDDEN, device="cuda", dtype=torch.bfloat16) * scale for _ in range(LAYERS)
        ]
        self.logits = torch.empty(n, experts, device="cuda", dtype=torch.bfloat16)
        self.stairs = (torch.arange(experts + 1, dtype=torch.float64, device="cuda") / 6).ceil() * 6
        self.ids = torch.randint(experts, (n, k), device="cuda", dtype=torch.int32)  # as the engine's router left them
        self.row_weights = torch.rand(n, k, device="cuda")
        self.flood = torch.zeros(2**25, device="cuda") if cold else None
        self.selection, self.selection_any = (
            FusedSelection(
                num_experts=experts,
                rows=n,
                device="cuda",
                router=self.spec,
                rows_per_request=rows_per_request,
                cost=self.stairs.unsqueeze(0) if cost else None,
                mask_logits=not self.grouped,
                thresholds=thresholds,
            )
            for thresholds in (thresholds_of([self.policy]), THRESHOLDS)
        )
        self.control = Control("cuda")
        self.control.set_policy(self.policy)
        self.control.set_step(n, self.starts, table=0 if cost else None)
        self.control.set_gate(True)
        self.control.push()

    def reference(self, logits: Tensor) -> object:
        step = prepare_step(logits, self.spec, self.layout, self.placement, cost=self.stairs if self.cost else None)
        keep = decide_routing(step, self.policy).keep
        return logits.masked_fill_(~keep, torch.finfo(logits.dtype).min)

    def fused(self, logits: Tensor) -> None:
        self.launch(self.selection, logits)

    def fused_any(self, logits: Tensor) -> None:
        self.launch(self.selection_any, logits)

    def launch(self, selection: FusedSelection, logits: Tensor) -> None:
        selection.launch(logits, self.control)
        if self.grouped:
            selection.reroute(logits, self.row_weights, self.ids, self.control)

    def chain(self, select: Call | None) -> Callable[[], None]:
        def layers() -> None:
            for weight in self.weights:
                if self.flood is not None:
                    self.flood.sum()
                torch.mm(self.hidden, weight.t(), out=self.logits)
                if select is not None:
                    select(self.logits)
                if self.router == "softmax":
                    self.logits.softmax(-1).topk(self.k)
                else:
                    (self.logits.float().sigmoid() + self.selection.masked_bias).topk(self.k)

        return layers

    def alone(self, select: Call) -> Callable[[], None]:
        def layers() -> None:
            for _ in range(LAYERS):
                select(self.logits)

        self.logits.normal_()
        return layers


def captured(call: Callable[[], None]) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def replay_us(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1000 / LAYERS


def measure(shape: Shape, impl: str, select: Call) -> Row:
    alone, without, with_it = captured(shape.alone(select)), captured(shape.chain(None)), captured(shape.chain(select))
    if impl == "fused-off":
        shape.control.set_gate(False)
        shape.control.push()
    times = [tuple(replay_us(graph) for graph in (alone, without, with_it)) for _ in range(REPLAYS)][5:]
    shape.control.set_gate(True)
    shape.control.push()
    extra = [c - b for _, b, c in times]
    low, _, high = statistics.quantiles(extra, n=4)
    return {
        "impl": impl,
        "n": shape.n,
        "experts": shape.experts,
        "k": shape.k,
        "router": shape.router,
        "policy": str(shape.policy),
        "cost": shape.cost,
        "us": statistics.median(a for a, _, _ in times),
        "marginal_us": statistics.median(extra),
        "spread_us": high - low,
    }


def grid() -> list[Point]:
    """(n, experts, k, router, policy, cost): the points with a bound first."""
    named = [
        (16, 128, 4, "softmax", "k0=1,m=24", False),
        (16, 128, 4, "softmax", "k0=0,lam=0.04,p=2", False),
        (16, 128, 4, "softmax", "k0=0,lam=0.04,p=2", True),
        (16, 128, 4, "softmax", "k0=1,m=24", True),
        (16, 128, 4, "softmax", "k0=1,m=0,mr=4", False),
        (64, 256, 8, "sigmoid", "k0=1,m=24", False),
        (16, 128, 4, "softmax", "k0=0,rho=0.7", False),
        (64, 256, 8, "sigmoid", "k0=0,rho=0.7", False),
        (16, 128, 4, "softmax", "k0=1,m=24,score=full", False),
        (64, 256, 8, "sigmoid", "k0=1,m=24,score=full", False),
        (16, 128, 4, "softmax", "k0=1,m=0,mr=4,score=full", False),
    ]
    batch = [(n, N, k, "softmax", f"k0=1,m={max(4, 3 * N // 16)}", False) for N, k in SIZES for n in ROWS]
    further = [(16, 256, 8, "sigmoid", "k0=1,m=48", False), (16, 128, 4, "softmax", "k0=1,tau=0.9", False)]
    further += [(n, 256, 8, "grouped", "k0=0,rho=0.7", False) for n in (4, 16, 32, 64)]
    return list(dict.fromkeys(named + batch + further))


def measured(json: Path | None, points: list[Point], compile: int, cold: bool) -> list[Row]:
    about = {"gpu": torch.cuda.get_device_name(), "triton": triton.__version__, "layers": LAYERS}
    results = Results(json, None, about | {"seed": None, "cold": cold}, lists=())
    with progress_bar("shapes", len(points)) as advance:
        for number, point in enumerate(points):
            shape = Shape(*point, cold=cold)
            impls: dict[str, Call] = {"floor": lambda logits: nothing[(1,)](logits), "reference": shape.reference}
            if number < compile:
                torch._dynamo.reset()  # of the shapes before: beyond a number of them it gives up and runs uncompiled
                impls["compiled"] = torch.compile(shape.reference, dynamic=False)
            impls |= {"fused": shape.fused, "fused-any": shape.fused_any, "fused-off": shape.fused}
            results.rows += [measure(shape, impl, select) for impl, select in impls.items()]
            advance(1)
            results.write()  # a long run leaves what it has
    return results.rows


def main(
    json: Annotated[Path | None, typer.Option(help="Write the rows here.")] = None,
    points: Annotated[int, typer.Option(min=1, help="Only the first so many shapes.")] = len(grid()),
    compile: Annotated[int, typer.Option(help="On how many shapes to time the compiled reference.")] = len(grid()),
    earlier: Annotated[Path | None, typer.Option(help="Show these rows instead of measuring.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the rows here (.svg or .png).")] = None,
    cold: Annotated[bool, typer.Option("--cold", help="With the cache full of other things.")] = False,
) -> None:
    if plot is not None:
        check_plot(plot)
    rows = measured(json, grid()[:points], compile, cold) if earlier is None else read_json(earlier.read_text())["rows"]
    names = list(dict.fromkeys(row["impl"] for row in rows))
    table = number_table("marginal microseconds a layer (alone)", "router, policy", "n", "N", "k", *names)
    for point in dict.fromkeys(tuple(row.get(name) for name in POINT) for row in rows):
        n, N, k, router, policy, cost = point
        at = {row["impl"]: row for row in rows if tuple(row.get(name) for name in POINT) == point}
        cells = [f"{at[i]['marginal_us']:.1f} ({at[i]['us']:.1f})" if i in at else "" for i in names]
        table.add_row(f"{router} {policy}{', by cost' if cost else ''}", str(n), str(N), str(k), *cells)
    wide_console().print(table)
    if plot is not None:
        plot_kernel(rows, plot, "selection on an H200, inside [router GEMM, selection, top-k]")


if __name__ == "__main__":
    typer.run(main)
