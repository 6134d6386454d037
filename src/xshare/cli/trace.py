"""`xshare trace import`, `show` and `load`; `xshare trace record` is in trace_record.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from xshare.cli import options as take
from xshare.cli.old_options import Command
from xshare.cli.output import number_table, print_table, wide_console
from xshare.cli.trace_record import record_command
from xshare.files import check_distinct_paths, check_writable
from xshare.report.plot import check_plot, plot_load
from xshare.results import check_replaceable, provenance, write_result
from xshare.trace import Trace, import_npz
from xshare.trace.compressed import content_sha256
from xshare.trace.expert_load import load_rows

app = typer.Typer(
    name="trace",
    no_args_is_help=True,
    add_completion=False,
    help="Routing traces: record them, import them, look into them.",
)
app.command("record", cls=Command)(record_command)


@app.command("import", cls=Command)
def import_command(
    file: Annotated[Path, typer.Argument(help="An .npz file with experts, weights and lengths.")],
    out: take.OutTrace,
    name: take.Name = None,
    experts: Annotated[
        int | None, typer.Option(min=1, help="Experts per layer, for a model that XShare does not know.")
    ] = None,
) -> None:
    """Read a NumPy file of chosen experts and write it as a trace."""
    check_distinct_paths([out], [file])
    check_writable(out)
    trace = import_npz(file, name, experts)
    trace.save(out)
    layers = len(trace.header.layers)
    typer.echo(f"{out}: {trace.header.model}, {trace.tokens:,} tokens, {len(trace.lengths)} sequences, {layers} layers")


@app.command("show")
def show(file: Annotated[Path, typer.Argument(help="A trace file.")]) -> None:
    """Print what a trace holds."""
    trace = Trace.load(file)
    header, router = trace.header, trace.header.router
    weights = "renormalised" if router.renormalize else "not renormalised"
    groups = f", {router.topk_group} of {router.n_group} groups" if router.n_group > 1 else ""
    scale = f", scaled by {router.routed_scaling_factor:g}" if router.routed_scaling_factor != 1 else ""
    holds = {"topk": f"the {header.top_k} chosen experts and their weights", "full": "full router logits"}
    console = wide_console()
    facts = {
        "model": header.model,
        "experts": f"{header.num_experts} a layer, {len(header.layers)} layers, top-{header.top_k}",
        "router": f"{router.scoring}, weights {weights}{groups}{scale}",
        "holds": f"{holds[header.score]} (score form: {header.score})",
        "size": f"{trace.tokens:,} tokens in {len(trace.lengths)} sequences "
        f"({int(trace.lengths.min())} to {int(trace.lengths.max())} long), {file.stat().st_size / 1e6:.1f} MB",
        "categories": str(len(set(header.categories))) if header.categories else "none",
    }
    for name, value in facts.items():
        console.print(f"[bold]{name:<12}[/bold]{escape(value)}")
    table = number_table("", "domain", "sequences", "tokens")
    for domain in sorted(set(header.domains)):
        lengths = [int(n) for n, name in zip(trace.lengths, header.domains, strict=True) if name == domain]
        table.add_row(escape(domain), str(len(lengths)), f"{sum(lengths):,}")
    print_table(table)
    for name in ("source", "argv", "time", "git", "versions"):
        if (fact := header.provenance.get(name)) is not None:
            text = " ".join(map(str, fact)) if isinstance(fact, list) else str(fact)
            console.print(f"[bold]{name:<12}[/bold]{escape(text)}")


@app.command("load", cls=Command)
def load(
    file: Annotated[Path, typer.Argument(help="A trace file.")],
    out: take.OutRows = None,
    plot: take.Plot = None,
) -> None:
    """How evenly each layer uses its experts, and how many it never uses."""
    check_distinct_paths([out, plot], [file])
    for path, check in ((out, check_replaceable), (plot, check_plot)):
        if path is not None:
            check(path)
    trace = Trace.load(file)
    rows = load_rows(trace)
    title = f"{escape(trace.header.model)}, {trace.header.num_experts} experts, top-{trace.header.top_k}"
    table = number_table(f"{title}: load", "layer", "entropy", "dead", "heaviest")
    for row in rows:
        table.add_row(str(row["layer"]), f"{row['entropy']:.3f}", f"{row['dead']:.1%}", f"{row['heaviest']:.1f}x")
    print_table(table)
    console = wide_console()
    if out is not None:
        write_result(
            out, rows, provenance(model=trace.header.model, trace=file.name, trace_sha256=content_sha256(file))
        )
        console.print(f"rows written to {out}")
    if plot is not None:
        plot_load(rows, plot, title)
        console.print(f"plot written to {plot}")
