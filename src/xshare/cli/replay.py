"""`xshare replay`: what policies would have loaded and lost on a trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.markup import escape
from rich.table import Table

from xshare.batch import Placement
from xshare.cli.output import number_table, progress_bar, wide_console
from xshare.errors import PolicyError, XShareError
from xshare.files import check_apart
from xshare.policy import Policy
from xshare.report.plot import check_plot, plot_curve, plot_overlap, plot_tradeoff
from xshare.results import Row, check_replaced, provenance, sha256, write_result
from xshare.results.columns import spelled_mean
from xshare.trace import Batches, Trace, one_pass, overlap, replay, sampled
from xshare.trace.rows import curve_rows, layer_rows, replay_row
from xshare.trace.sample import Mix

CHOSEN_ONLY = (
    "[dim]This trace holds the chosen experts only: their weights are the scores (score=topk), "
    "and a row keeps those of its experts that are in S.[/dim]"
)


def replay_command(
    trace: Annotated[Path, typer.Argument(help="A trace file (see `xshare trace import`).")],
    policy: Annotated[list[str] | None, typer.Option(help="k0=1,m=6, oea:k0=2, a preset ...; may be repeated.")] = None,
    policies: Annotated[Path | None, typer.Option(help="A YAML file with a list of policies.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Requests in a batch.")] = 16,
    draft: Annotated[int, typer.Option(min=0, help="Drafted tokens a request: it takes 1 + this many rows.")] = 0,
    devices: Annotated[int, typer.Option(min=1, help="Devices the experts are spread over, in blocks.")] = 1,
    mix: Annotated[
        Mix, typer.Option(help="Sequences of a batch: any, of several domains each, of one each.")
    ] = "random",
    batches: Annotated[int, typer.Option(min=1, help="How many batches to sample.")] = 200,
    everything: Annotated[bool, typer.Option("--all", help="One pass over the whole trace instead.")] = False,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    by_layer: Annotated[bool, typer.Option("--by-layer", help="Also a line for each layer.")] = False,
    curve: Annotated[bool, typer.Option("--curve", help="Active experts against batch size.")] = False,
    overlaps: Annotated[bool, typer.Option("--overlap", help="Overlap of two tokens' experts.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the rows and their provenance here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw to this .png or .svg.")] = None,
) -> None:
    """Replay policies on the batches of a trace: active experts, gating mass, what is lost."""
    if curve and overlaps:
        raise XShareError("--curve and --overlap are two different tables: ask for one at a time")
    check_apart([json, plot], [trace, policies])
    if json is not None:
        check_replaced(json)
    if plot is not None:
        check_plot(plot)
    chosen = [Policy.parse("native"), *_policies(policy or [], policies)]
    loaded = Trace.load(trace)
    header = loaded.header
    placement = Placement.contiguous(header.num_experts, devices)
    setting: Row = {"batch": batch, "draft": draft, "devices": devices, "mix": mix, "seed": seed}
    console = wide_console()
    title = f"{escape(header.model)}, {header.num_experts} experts, top-{header.top_k}, {len(header.layers)} layers"

    def batches_of(size: int) -> Batches:
        return (
            one_pass(loaded, size, draft, mix, seed) if everything else sampled(loaded, size, draft, mix, batches, seed)
        )

    if overlaps:
        rows = overlap(loaded, seed=seed)
        console.print(_overlap_table(rows, title))
    elif curve:
        sizes = [2**power for power in range(8) if 2**power <= len(loaded.lengths)]
        with progress_bar("batch sizes", len(sizes)) as advance:
            rows = []
            for size in sizes:
                outcomes = replay(loaded, chosen, batches_of(size), placement)
                rows += curve_rows(outcomes, header, setting | {"batch": size})
                advance(1)
        console.print(_curve_table(rows, title, [str(p) for p in chosen]))
    else:
        laid_out = batches_of(batch)
        with progress_bar("batches", len(laid_out)) as advance:
            outcomes = replay(loaded, _with_defaults(chosen, header.top_k), laid_out, placement, advance)
        rows = [replay_row(outcome, setting) for outcome in outcomes]
        spelled = (
            f"batch {batch}" + (f" x {1 + draft} rows" if draft else "") + (f", {devices} devices" * (devices > 1))
        )
        console.print(_replay_table(rows, f"{title}: {spelled}, {len(laid_out)} batches"))
        if header.score == "topk":
            console.print(CHOSEN_ONLY)
        if by_layer:
            by = [row for outcome in outcomes for row in layer_rows(outcome, header, setting)]
            console.print(_layer_table(by))
            rows += by
    if json is not None:
        stamp = provenance(model=header.model, trace=trace.name, trace_sha256=sha256(trace), seed=seed)
        write_result(json, rows, stamp)
        console.print(f"rows written to {json}")
    if plot is not None:
        draw = plot_overlap if overlaps else plot_curve if curve else plot_tradeoff
        draw([row for row in rows if row.get("layer") is None], plot, title)
        console.print(f"plot written to {plot}")


def _policies(strings: Sequence[str], file: Path | None) -> list[Policy]:
    found = [Policy.parse(text) for text in strings]
    if file is not None:
        if not file.is_file():
            raise PolicyError(f"policies file {str(file)!r} does not exist or is not a file")
        try:
            listed = yaml.safe_load(file.read_text())
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            reason = str(error).splitlines()[0]
            raise PolicyError(f"policies file {str(file)!r} is not YAML: {reason}") from None
        if not isinstance(listed, list):
            raise PolicyError(f"policies file {str(file)!r} must hold a list of policies")
        found += [Policy.of(item) for item in listed]
    return [policy for policy in dict.fromkeys(found) if str(policy) != "native"]


def _with_defaults(policies: list[Policy], k: int) -> list[Policy]:
    """Something to look at when no policy is named: warm-up alone, a budget on top, and its random control."""
    named = ["k0=1,m=0", "k0=2,m=0", f"k0=1,m={k}", f"random:k0=1,m={k}"]
    return policies if len(policies) > 1 else policies + [Policy.parse(text) for text in named[: 4 if k > 1 else 1]]


def _replay_table(rows: list[Row], title: str) -> Table:
    table = number_table(title, "policy", "active", "of native", "mass", "top-1 kept", "max load")
    for row in rows:
        share = f"{row['active'] / row['active_native']:.0%}" if row["active_native"] else "-"
        kept, load = f"{row['top1_kept']:.3f}", f"{row['max_load']:.1f}"
        table.add_row(row["policy"], spelled_mean(row, "active", 2), share, spelled_mean(row, "mass", 3), kept, load)
    return table


def _layer_table(rows: list[Row]) -> Table:
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    table = number_table("active experts (gating mass) by layer", "layer", *policies)
    for layer in dict.fromkeys(row["layer"] for row in rows):
        cells = {row["policy"]: f"{row['active']:.1f} ({row['mass']:.3f})" for row in rows if row["layer"] == layer}
        table.add_row(str(layer), *(cells[policy] for policy in policies))
    return table


def _curve_table(rows: list[Row], title: str, policies: list[str]) -> Table:
    table = number_table(f"{title}: active experts a layer", "batch", "closed form", *policies)
    for size in dict.fromkeys(row["batch"] for row in rows):
        cells = {row["policy"]: row for row in rows if row["batch"] == size}
        closed = f"{cells[policies[0]]['closed_form']:.1f}"
        table.add_row(str(size), closed, *(spelled_mean(cells[policy], "active", 2) for policy in policies))
    return table


def _overlap_table(rows: list[Row], title: str) -> Table:
    table = number_table(f"{title}: experts two tokens share", "pair of tokens", "of their top", "shared", "by chance")
    for row in rows:
        table.add_row(row["pair"], str(row["top"]), spelled_mean(row, "overlap", 3), f"{row['chance']:.3f}")
    return table
