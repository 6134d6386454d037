"""All of routing in one launch against vLLM's own: is it the same, and what does it save?

    python benchmarks/one_launch.py [--json evidence/one_launch.json]
    python benchmarks/one_launch.py --path modular --json FILE
    python benchmarks/one_launch.py --cold --rows 16 --each 4 --json FILE

Needs a GPU and vLLM 0.26. There are two paths: `mxfp4`, vLLM's Triton path for gpt-oss (top-4), and `modular`, that of
Qwen3 (top-8). A graph of LAYERS layers of [router GEMM -> routing] is replayed, with the experts left out, in seven
forms, in turns; `..._us` are medians of a layer, the router's GEMM included:

  native   vLLM's routing as it is: top-k, and what sorts rows by expert
  masked   selection in front of it, which masks logits
  one      selection and routing in one launch of ours
  noop     the same with the no-op control, which keeps every expert and ranks all of them for it
  closed   the same, gate closed: native routing in one launch
  bare     `one` without the code for protected rows, as a server has it with `protect: false`
  guarded  `one` with two protected rows, where there are two

With --cold every layer first reads more than the L2 cache holds, as the experts of a model's layer do: without them the
code and the data of all kernels stay in the cache from one layer to the next, which in a real step they do not. Every
`..._us` has the time of that reading in it, `none_us` too, so what routing takes is the difference between the two.

`compared` batches of logits of many scales, with ties, -0 and -inf among them, were routed both ways under each policy,
gate open and closed; of `differ` any table had another bit.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from kernel import HIDDEN, LAYERS, captured, replay_us

from xshare import Policy, RouterSpec
from xshare.cli.output import number_table, progress_bar, wide_console
from xshare.engines.vllm import one_launch, one_launch_modular
from xshare.engines.vllm.expert_bytes import rows_unshared
from xshare.kernels.control import Control
from xshare.kernels.launch import FusedSelection
from xshare.kernels.plan import Plan
from xshare.kernels.routing_blocks import Blocks
from xshare.kernels.routing_tables import Tables
from xshare.results import Results, Row

REPLAYS = 60
EXPERTS = 128
CELLS = [(rows, 0) for rows in (1, 4, 8, 16, 32, 64, 128, 256)] + [(16, 4), (64, 4)]  # rows, and of a request
POLICIES = ("k0=0,rho=0.7", "k0=1,m=24", "k0=2,m=0")


@dataclass(frozen=True)
class Routed:
    """One of vLLM's paths, its model's top-k, and the memory of its routing."""

    module: Any
    top_k: int
    tables: Callable[..., Tables | Blocks]

    def make_tables(self, plan: Plan) -> Tables | Blocks:
        return self.tables(plan, EXPERTS, self.top_k, torch.bfloat16, "cuda")


PATHS = {
    "mxfp4": Routed(one_launch, 4, Tables),
    "modular": Routed(one_launch_modular, 8, partial(Blocks, unsorted=rows_unshared(EXPERTS, 8))),
}


def fused_selection(
    path: Routed, rows: int, rows_per_request: int, routes: bool, protects: bool = True
) -> FusedSelection:
    selection = FusedSelection(
        num_experts=EXPERTS,
        rows=rows,
        device="cuda",
        router=RouterSpec.softmax(path.top_k),
        rows_per_request=rows_per_request,
        mask_logits=True,
        protects=protects,
        routes=routes,
    )
    if routes:
        selection.tables = path.make_tables(selection.plan)
    return selection


def control_of(policy: str, rows: int, rows_per_request: int, protected: int = 0) -> Control:
    control = Control("cuda")
    control.set_policy(Policy.parse(policy))
    starts = [*range(0, rows, rows_per_request), rows] if rows_per_request else None
    control.set_step(rows, starts, list(range(min(rows, protected))) or None)
    control.set_gate(True)
    control.push()
    return control


def differing(
    path: Routed, selection: FusedSelection, control: Control, rows: int, batches: int, dice: torch.Generator
) -> int:
    """How many of the batches are not routed bit for bit as by vLLM."""
    lowest, mismatches = torch.finfo(torch.bfloat16).min, 0
    assert selection.keep is not None
    for batch in range(batches):
        logits = torch.randn(rows, EXPERTS, generator=dice, device="cuda") * 4 ** (batch % 5 - 2)
        if batch % 3 == 1:
            logits = logits.round()  # ties, and -0
        if batch % 7 == 3:
            logits[:, batch % EXPERTS :: 5] = -torch.inf
        logits = logits.bfloat16()
        control.set_gate(batch % 2 == 0)
        control.push()
        selection.launch(logits, control)
        finite = torch.where(logits == -torch.inf, lowest / 2, logits)
        inside = torch.where(selection.keep, finite, lowest) if batch % 2 == 0 else logits
        # With nothing outside, -inf is the same as the value that stands for it: neither gets a weight.
        inside = torch.where(inside == -torch.inf, lowest / 2, inside).bfloat16()
        ours = path.module.engine_tables(selection.tables, rows)
        mismatches += not path.module.same_bits(ours, path.module.route_natively(selection.tables, inside))
    return mismatches


def beyond_cache() -> torch.Tensor:
    """More than twice what the L2 cache holds: reading it leaves nothing else there."""
    cache_bytes = torch.cuda.get_device_properties("cuda").L2_cache_size
    return torch.zeros(2 * cache_bytes // 4 + 1, dtype=torch.float32, device="cuda")


def times(path: Routed, rows: int, rows_per_request: int, cold: bool) -> Row:
    masking, policy = fused_selection(path, rows, rows_per_request, False), POLICIES[0]
    routing, bare = (
        fused_selection(path, rows, rows_per_request, True),
        fused_selection(path, rows, rows_per_request, True, protects=False),
    )
    is_open, closed = control_of(policy, rows, rows_per_request), control_of(policy, rows, rows_per_request)
    closed.set_gate(False)
    closed.push()
    guarded = control_of(policy, rows, rows_per_request, protected=2)
    launched = {"one": (routing, is_open), "closed": (routing, closed), "bare": (bare, is_open)}
    launched |= {
        "guarded": (routing, guarded),
        "noop": (routing, control_of(f"k0=1,m={EXPERTS}", rows, rows_per_request)),
    }
    hidden = torch.randn(rows, HIDDEN, device="cuda", dtype=torch.bfloat16)
    weights = [torch.randn(EXPERTS, HIDDEN, device="cuda", dtype=torch.bfloat16) / 27 for _ in range(LAYERS)]
    logits = torch.empty(rows, EXPERTS, device="cuda", dtype=torch.bfloat16)
    flood = beyond_cache() if cold else None

    def chain(form: str) -> Any:
        def layers() -> None:
            for weight in weights:
                if flood is not None:
                    flood.sum()
                torch.mm(hidden, weight.t(), out=logits)
                if form in launched:
                    selection, control = launched[form]
                    selection.launch(logits, control)
                    continue
                if form == "masked":
                    masking.launch(logits, is_open)
                if form != "none":
                    path.module.route_natively(routing.tables, logits)

        return captured(layers)

    graphs = {form: chain(form) for form in ("none", "native", "masked", *launched)}
    taken: dict[str, list[float]] = {form: [] for form in graphs}
    for replay in range(REPLAYS):
        for form in graphs if replay % 2 else reversed(graphs):
            taken[form].append(replay_us(graphs[form]))
    return {f"{form}_us": statistics.median(samples[5:]) for form, samples in taken.items()}


def main(
    json: Annotated[Path | None, typer.Option(help="Write the rows here.")] = None,
    batches: Annotated[int, typer.Option(help="Batches of logits of each policy to compare.")] = 70,
    path: Annotated[str, typer.Option(help="mxfp4 or modular.")] = "mxfp4",
    cold: Annotated[bool, typer.Option("--cold", help="With the cache full of other things.")] = False,
    rows: Annotated[list[int] | None, typer.Option(help="Only cells of so many rows; may be repeated.")] = None,
    of_request: Annotated[
        list[int] | None,
        typer.Option("--each", help="Only cells with so many rows of a request (0: one); may be repeated."),
    ] = None,
) -> None:
    if path not in PATHS:
        raise typer.BadParameter(f"{path!r} is no path: there are {', '.join(PATHS)}")
    cells = [cell for cell in CELLS if (not rows or cell[0] in rows) and (not of_request or cell[1] in of_request)]
    if not cells:
        raise typer.BadParameter(f"there is no such cell (rows, of a request): there are {CELLS}")
    chosen = PATHS[path]
    import triton
    import vllm
    from vllm.utils.import_utils import has_triton_kernels

    has_triton_kernels()  # gives vLLM's own copy that name
    about = {"gpu": torch.cuda.get_device_name(), "triton": triton.__version__, "vllm": vllm.__version__, "seed": 0}
    about |= {"layers": LAYERS, "experts": EXPERTS, "top_k": chosen.top_k, "path": path, "cold": cold}
    results = Results(json, None, about, lists=())
    dice = torch.Generator("cuda").manual_seed(0)
    forms = ["GEMM alone", "native", "masked", "one launch", "gate closed", "bare", "guarded", "no-op"]
    title = "routing of a layer, us, its router's GEMM included"
    table = number_table(title, "rows", "of a request", *forms, "compared", "differ")
    with progress_bar("cells", len(cells)) as advance:
        for count, rows_per_request in cells:
            differ = 0
            selection = fused_selection(chosen, count, rows_per_request, True)
            for policy in POLICIES:
                control = control_of(policy, count, rows_per_request)
                differ += differing(chosen, selection, control, count, batches, dice)
            row = {
                "rows": count,
                "each": rows_per_request,
                **times(chosen, count, rows_per_request, cold),
                "compared": batches * len(POLICIES),
                "differ": differ,
            }
            results.rows.append(row)
            results.write()
            table.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()))
            advance(1)
    wide_console().print(table)
    raise typer.Exit(1 if any(row["differ"] for row in results.rows) else 0)


if __name__ == "__main__":
    typer.run(main)
