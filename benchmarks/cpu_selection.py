"""What selection costs on one core: compiled, through route(), and by the reference, in turns in one run.

    python benchmarks/cpu_selection.py

16 rows of 64 experts, top-4, or another shape by --rows, --experts and --top-k; each of the policies as often as
--repeats says, of which the median counts. Times are of the machine at hand, ratios hold elsewhere too.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer
from lib.command import run

import xshare
from xshare.cli.output import number_table, progress_bar, wide_console
from xshare.kernels import cpu
from xshare.results import Results, Row, check_replaceable
from xshare.routing import fit_layout, prepare_step, route, route_prepared

POLICIES = [
    "balanced", "fast", "k0=2,m=0", "k0=1,m=12", "k0=1,m=12,p=3", "k0=1,m=12,score=full", "lam=0.04,p=2", "k0=1,mr=4",
    "k0=1,mg=5", "k0=1,tau=0.8", "oea:k0=2",
]  # fmt: skip


def reference(
    logits: torch.Tensor,
    router: xshare.RouterSpec,
    policy: xshare.Policy,
    layout: xshare.BatchLayout,
    placement: xshare.Placement | None,
) -> xshare.Routing:
    return route_prepared(prepare_step(logits, router, *fit_layout(logits, layout, placement)), router, policy)


def timed(call: Callable[[], object], times: int) -> float:
    """Microseconds."""
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times * 1e6


def main(
    rows: Annotated[int, typer.Option(min=1)] = 16,
    experts: Annotated[int, typer.Option(min=1)] = 64,
    top_k: Annotated[int, typer.Option(min=1)] = 4,
    repeats: Annotated[int, typer.Option(min=1, help="Of each, in turns.")] = 15,
    json: Annotated[Path, typer.Option(help="Results.")] = Path("evidence/cpu_selection.json"),
) -> None:
    check_replaceable(json)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    logits, router = torch.randn(rows, experts) * 2, xshare.RouterSpec.softmax(top_k)
    layout = xshare.BatchLayout(torch.arange(rows) // 4)
    devices = xshare.Placement.contiguous(experts, 8)
    timings: list[Row] = []
    with progress_bar("policies", len(POLICIES)) as advance:
        for text in POLICIES:
            policy = xshare.Policy.parse(text)
            placement = devices if policy.device_budget is not None else None
            calls: dict[str, tuple[Callable[[], object], int]] = {
                "selection": (partial(cpu.Steps(router, policy, placement), logits, layout), 200),
                "route": (partial(route, logits, router, policy, layout=layout, placement=placement), 200),
                "reference": (partial(reference, logits, router, policy, layout, placement), 10),
            }
            us: dict[str, list[float]] = {name: [] for name in calls}
            for repeat in range(repeats + 1):  # the first warms up
                for name, (call, times) in calls.items():
                    took = timed(call, times)
                    us[name] += [took] if repeat else []
            row: Row = {"policy": str(policy), "rows": rows, "experts": experts, "top_k": top_k}
            row |= {f"{name}_us": median(values) for name, values in us.items()}
            ratios = sorted(slow / fast for slow, fast in zip(us["reference"], us["selection"], strict=True))
            timings.append(row | {"times": median(ratios), "times_least": ratios[0]})
            advance(1)
    results = Results(json, None, {"machine": platform.machine(), "seed": 0, "repeats": repeats}, lists=())
    results.rows = timings
    results.write()
    title = f"{rows} rows, {experts} experts, top-{top_k}"
    table = number_table(title, "policy", "selection us", "route us", "reference us", "")
    for row in timings:
        figures = (f"{row[name]:.0f}" for name in ("selection_us", "route_us", "reference_us"))
        table.add_row(row["policy"], *figures, f"{row['times']:.0f} times")
    wide_console().print(table)


if __name__ == "__main__":
    run(main)
