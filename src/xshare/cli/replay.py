"""`xshare replay`: what policies would have loaded and lost on a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
import yaml
from rich.markup import escape
from rich.table import Table

from xshare.batch import Placement
from xshare.cli import options as take
from xshare.cli.output import number_table, print_table, progress_bar, wide_console
from xshare.errors import PolicyError, XShareError
from xshare.files import check_distinct_paths, read_whole
from xshare.policy import Policy
from xshare.report.labels import with_variant_name
from xshare.report.plot import check_plot, plot_curve, plot_overlap, plot_tradeoff
from xshare.results import Row, check_replaceable, provenance, write_result
from xshare.results.columns import mean_text
from xshare.trace import Batches, Trace, one_pass, overlap, sampled
from xshare.trace import replay as replayed
from xshare.trace.batches import Mix as Mixed
from xshare.trace.compressed import content_sha256
from xshare.trace.random_routing import is_random_trace, random_trace
from xshare.trace.replay_ranks import replay_ranks
from xshare.trace.replay_rows import curve_rows, layer_rows, replay_row

Mix = Literal["random", "mixed", "alike"]
AS_TRACED: dict[Mix, Mixed] = {"random": "random", "mixed": "domain", "alike": "single"}  # as result files have it
CHOSEN_ONLY = (
    "[dim]This trace holds the chosen experts only: their weights are the scores (score=topk), "
    "and a row keeps those of its experts that are in S.[/dim]"
)


def replay(
    trace: Annotated[
        Path, typer.Argument(help="A trace file (see `xshare trace import`), or made-up routing as random:256,8.")
    ],
    policy: take.Policies = None,
    policies: Annotated[Path | None, typer.Option(help="A YAML file with a list of policies.")] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Requests in a batch.", show_default="16, or all of a smaller trace")
    ] = None,
    drafts: take.Drafts = 0,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Devices that hold the experts, in contiguous blocks.", show_default="1")
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=2, help="Data-parallel ranks that share a batch; compares one set for all ranks with one set per rank."
        ),
    ] = None,
    mix: Annotated[
        Mix, typer.Option(help="Batches of any sequences, of mixed domains, or of one domain each (alike).")
    ] = "random",
    batches: Annotated[int, typer.Option(min=1, help="How many batches to sample.")] = 200,
    everything: Annotated[bool, typer.Option("--all", help="One pass over the whole trace instead.")] = False,
    protect: take.Protect = None,
    seed: take.Seed = 0,
    by_layer: Annotated[bool, typer.Option("--by-layer", help="Also print one line per layer.")] = False,
    curve: Annotated[bool, typer.Option("--curve", help="Active experts against batch size.")] = False,
    overlaps: Annotated[bool, typer.Option("--overlap", help="Overlap of two tokens' experts.")] = False,
    out: take.OutRows = None,
    plot: take.Plot = None,
) -> None:
    """Replay policies on the batches of a trace: active experts, gating mass, what is lost."""
    if curve and overlaps:
        raise XShareError("--curve and --overlap are two different tables: ask for one at a time")
    if protect and (curve or overlaps):
        raise XShareError("--protect is for policies at one batch size: leave --curve and --overlap out")
    if ranks is not None and (curve or overlaps or by_layer or protect or plot is not None):
        raise XShareError(
            "--ranks is a table of its own: leave out --curve, --overlap, --by-layer, --protect and --plot"
        )
    check_distinct_paths([out, plot], [trace, policies])
    if out is not None:
        check_replaceable(out)
    if plot is not None:
        check_plot(plot)
    chosen = [Policy.parse("native"), *_policies(policy or [], policies)]
    if devices is None and ranks is None and (spread := [p for p in chosen if p.device_budget is not None]):
        raise XShareError(f"{spread[0]} fills devices (mg), and nobody said how many there are: name them by --devices")
    devices = devices or ranks or 1
    invented = is_random_trace(str(trace))
    loaded = random_trace(str(trace), seed) if invented else Trace.load(trace)
    header = loaded.header
    sequences = len(loaded.lengths)
    batch = batch or min(16, sequences)
    if batch > sequences:
        raise XShareError(f"batch must be at most {sequences}, the sequences of this trace, not {batch}")
    placement = Placement.contiguous(header.num_experts, devices)
    trace_mix = AS_TRACED[mix]
    setting: Row = {"batch": batch, "draft": drafts, "devices": devices, "mix": trace_mix, "seed": seed}
    console = wide_console()
    title = f"{escape(header.model)}, {header.num_experts} experts, top-{header.top_k}, {len(header.layers)} layers"

    def batches_of(size: int) -> Batches:
        if everything:
            return one_pass(loaded, size, drafts, trace_mix, seed)
        return sampled(loaded, size, drafts, trace_mix, batches, seed)

    if ranks is not None:
        laid_out = batches_of(batch)
        with progress_bar("batches", len(laid_out)) as advance:
            rank_outcomes = replay_ranks(
                loaded, _with_defaults(chosen, header.top_k), laid_out, placement, ranks, advance=advance
            )
        rows = [
            asdict(outcome) | setting | {"policy": str(outcome.policy), "ranks": ranks} for outcome in rank_outcomes
        ]
        where = f"batch {batch} over {ranks} ranks, {devices} devices"
        print_table(_ranks_table(rows, f"{title}: {where}, {len(laid_out)} batches"))
    elif overlaps:
        rows = overlap(loaded, seed=seed)
        print_table(_overlap_table(rows, title))
    elif curve:
        sizes = [2**power for power in range(8) if 2**power <= sequences]
        with progress_bar("batch sizes", len(sizes)) as advance:
            rows = []
            for size in sizes:
                outcomes = replayed(loaded, chosen, batches_of(size), placement)
                rows += curve_rows(outcomes, header, setting | {"batch": size})
                advance(1)
        print_table(_curve_table(rows, title, [str(p) for p in chosen]))
    else:
        laid_out = batches_of(batch)
        with progress_bar("batches", len(laid_out)) as advance:
            shares = list(dict.fromkeys([0.0, *(protect or [])]))
            all_policies = _with_defaults(chosen, header.top_k)
            outcomes = replayed(loaded, all_policies, laid_out, placement, advance, protected=shares)
        outcomes = [outcome for outcome in outcomes if outcome.policy.method != "native" or not outcome.protected]
        rows = [replay_row(outcome, setting) for outcome in outcomes]
        regime = (
            f"batch {batch}" + (f" x {1 + drafts} rows" if drafts else "") + (f", {devices} devices" * (devices > 1))
        )
        print_table(_replay_table(rows, f"{title}: {regime}, {len(laid_out)} batches"), "max load", "top-1 kept")
        if header.score == "topk":
            console.print(CHOSEN_ONLY)
        if by_layer:
            per_layer = [row for outcome in outcomes for row in layer_rows(outcome, header, setting)]
            print_table(_layer_table([*map(with_variant_name, per_layer)]))
            rows += per_layer
    largest = 0 if everything or overlaps else max(row["batch"] for row in rows)
    if mix == "alike" and (least := min(Counter(header.domains).values())) < largest:
        console.print(f"A domain of this trace has {least} sequences: larger batches hold some of them several times.")
    if out is not None:
        about: Row = {} if invented else {"trace": trace.name, "trace_sha256": content_sha256(trace)}
        stamp = provenance(model=header.model, **about, seed=seed)
        write_result(out, rows, stamp)
        console.print(f"rows written to {out}")
    if plot is not None:
        draw = plot_overlap if overlaps else plot_curve if curve else plot_tradeoff
        draw([with_variant_name(row) for row in rows if row.get("layer") is None], plot, title)
        console.print(f"plot written to {plot}")


def _policies(strings: Sequence[str], file: Path | None) -> list[Policy]:
    policies = [Policy.parse(text) for text in strings]
    if file is not None:
        content = read_whole(file, "policies file", 1 << 20, PolicyError)
        try:
            listed = yaml.safe_load(content.decode())
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            reason = str(error).splitlines()[0]
            raise PolicyError(f"policies file {str(file)!r} is not YAML: {reason}") from None
        if not isinstance(listed, list):
            raise PolicyError(f"policies file {str(file)!r} must hold a list of policies")
        policies += [Policy.of(item) for item in listed]
    return [policy for policy in dict.fromkeys(policies) if str(policy) != "native"]


def _with_defaults(policies: list[Policy], k: int) -> list[Policy]:
    """Defaults if no policy is named: warm-up alone, warm-up with a budget, and its random control."""
    named = ["k0=1,m=0", "k0=2,m=0", f"k0=1,m={k}", f"random:k0=1,m={k}"]
    return policies if len(policies) > 1 else policies + [Policy.parse(text) for text in named[: 4 if k > 1 else 1]]


def _replay_table(rows: list[Row], title: str) -> Table:
    protecting = any(row.get("protected") for row in rows)
    optional = ["protected", "others' mass"] if protecting else []
    table = number_table(
        title, "policy", *optional[:1], "active", "of native", "mass", *optional[1:], "top-1 kept", "max load"
    )
    for row in rows:
        share = f"{row['active'] / row['active_native']:.0%}" if row["active_native"] else "-"
        top1, load = f"{row['top1_kept']:.3f}", f"{row['max_load']:.1f}"
        cells = [mean_text(row, "active", 2), share, mean_text(row, "mass", 3)]
        if protecting:
            protected = f"{row.get('protected_requests', 0)} of {row['batch']}"
            cells = [protected, *cells, mean_text(row, "mass_shared", 3)]
        table.add_row(row["policy"], *cells, top1, load)
    return table


def _ranks_table(rows: list[Row], title: str) -> Table:
    table = number_table(title, "policy", "set", "active", "of a rank", "fullest device", "mass")
    for row in rows:
        if row["policy"] == "native" and row["shared"]:
            continue  # the same without a set
        which = "-" if row["policy"] == "native" else "of all ranks" if row["shared"] else "of each rank"
        cells = (f"{row[name]:.2f}" for name in ("active", "active_rank", "max_load"))
        table.add_row(row["policy"], which, *cells, f"{row['mass']:.3f}")
    return table


def _layer_table(rows: list[Row]) -> Table:
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    table = number_table("active experts (gating mass) by layer", "layer", *policies)
    for layer in dict.fromkeys(row["layer"] for row in rows):
        cells = {row["policy"]: f"{row['active']:.1f} ({row['mass']:.3f})" for row in rows if row["layer"] == layer}
        table.add_row(str(layer), *(cells[policy] for policy in policies))
    return table


def _curve_table(rows: list[Row], title: str, policies: list[str]) -> Table:
    table = number_table(f"{title}: active experts per layer", "batch", "closed form", *policies)
    for size in dict.fromkeys(row["batch"] for row in rows):
        cells = {row["policy"]: row for row in rows if row["batch"] == size}
        closed = f"{cells[policies[0]]['closed_form']:.1f}"
        table.add_row(str(size), closed, *(mean_text(cells[policy], "active", 2) for policy in policies))
    return table


def _overlap_table(rows: list[Row], title: str) -> Table:
    table = number_table(f"{title}: experts two tokens share", "pair of tokens", "of their top", "shared", "by chance")
    for row in rows:
        table.add_row(row["pair"], str(row["top"]), mean_text(row, "overlap", 3), f"{row['chance']:.3f}")
    return table
