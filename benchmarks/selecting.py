"""What does select() cost, and how does the cost grow with rows, experts and requests?

    python benchmarks/selecting.py [--json evidence/select.json]

Times are ratios to torch's softmax + topk on the same tensor, which is the least any router does: medians of paired
ratios, taken in turns in one process. `growth` is the factor by which the time itself rises for 16 times the rows, and
`growth_router` the same for softmax + topk. Linear growth is 16; both rise faster where caches end.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer

from xshare import BatchLayout, Placement, Policy, select
from xshare.cli.output import number_table, progress_bar, wide_console
from xshare.results import Results, Row

POLICIES = ["k0=1,m=24", "k0=1,m=0,mr=4", "k0=1,m=0,mg=4", "k0=1,tau=0.9"]
K, DEVICES = 8, 8


def seconds(call: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def measure(policy: Policy, n: int, experts: int, requests: int, rounds: int = 15) -> Row:
    logits = torch.randn(n, experts, generator=torch.Generator().manual_seed(0))
    scores = logits.softmax(-1)
    layout = BatchLayout(torch.arange(n) * requests // n)
    placement = Placement.contiguous(experts, DEVICES)

    def ours() -> object:
        return select(scores, policy, layout=layout, placement=placement)

    def router() -> object:
        return logits.softmax(-1).topk(K)

    repeats = max(1, min(20, 200_000 // (n * experts)))
    pairs = [(seconds(ours, repeats), seconds(router, repeats)) for _ in range(rounds)][2:]
    return {
        "policy": str(policy),
        "n": n,
        "experts": experts,
        "requests": requests,
        "ratio": statistics.median(a / b for a, b in pairs),
        "seconds": [statistics.median(times) for times in zip(*pairs, strict=True)],
    }


def grid() -> list[tuple[str, str, int, int, int]]:
    """(question, policy, n, experts, requests)"""
    points = []
    for policy in POLICIES:
        points += [("rows", policy, n, 128, max(1, n // 4)) for n in (4, 16, 64, 256, 1024, 4096, 16384)]
        points += [("experts", policy, 64, N, 16) for N in (32, 64, 128, 256, 384, 512)]
    points += [("requests", "k0=1,m=0,mr=4", 256, 128, R) for R in (1, 4, 16, 64, 256)]
    return points


def add_growth(rows: list[Row]) -> None:
    for policy in POLICIES:
        at = {row["n"]: row for row in rows if row["policy"] == policy and row["question"] == "rows"}
        for n in (1024, 4096, 16384):
            for column, which in (("growth", 0), ("growth_router", 1)):
                at[n][column] = at[n]["seconds"][which] / at[n // 16]["seconds"][which]


def main(json: Annotated[Path | None, typer.Option(help="Write the rows here.")] = None) -> None:
    torch.set_num_threads(1)
    rows = []
    with progress_bar("points", len(grid())) as advance:
        for question, policy, n, experts, requests in grid():
            rows.append({"question": question, **measure(Policy.parse(policy), n, experts, requests)})
            advance(1)
    add_growth(rows)
    for row in rows:
        del row["seconds"]  # absolute times of a shared machine say nothing
    columns = {"n": "n", "experts": "N", "requests": "requests", "ratio": "x softmax+topk"}
    for question in ("rows", "experts", "requests"):
        titles = columns | ({"growth": "growth", "growth_router": "of the router"} if question == "rows" else {})
        table = number_table(f"cost against {question}", "policy", *titles.values())
        for row in (row for row in rows if row["question"] == question):
            cells = [row.get(name, "") for name in titles]
            table.add_row(row["policy"], *(f"{x:.1f}" if isinstance(x, float) else str(x) for x in cells))
        wide_console().print(table)
    results = Results(json, None, {"seed": 0, "threads": 1}, lists=())
    results.rows = rows
    results.write()


if __name__ == "__main__":
    typer.run(main)
