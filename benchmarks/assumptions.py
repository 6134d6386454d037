"""Do the paper's assumptions hold on a trained model?

    python benchmarks/assumptions.py --jobs 2                                        nano
    python benchmarks/assumptions.py --model FOLDER --jobs 8 --engine-args '{"device": "cuda", "dtype": "float32"}'

Lists of the result file:

  layers       one layer pruned alone, and all of them (layer null), on native's answers forced in batches of 16:
               experts, gating mass lost, KL of the next token, and `same`, the share of positions at which the next
               token stays. Means over full steps, KL with a bootstrap interval over blocks of neighbouring steps
  correlation  does mass lost predict KL? Pearson's and Spearman's, by step: within a policy, and over all policies
               (policy null; then budgets differ too); `steps` null: over the means of `layers`
  points       some of those steps, for the scatter
  overlap      how many of their best experts two tokens share: consecutive ones of a text, as drafts are, of two texts
               of one domain, of two domains; from full logits
  matched      does warm-up matter? k0=0 against k0=1 at as many experts, answers decoded: change is what k0=0 gains
  rows         the policies of `matched`, as in paper_quality.json
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from lib import answer_options as take
from lib.answer_bench import Bench, Job, Setting, threads_each, workers_of
from lib.cell_results import CellResults
from lib.cells import KEY, LISTS, Cell, CellRunner, RivalKnobs, show, tasks_of
from lib.command import run, say_results
from lib.correlation import correlate
from lib.paper_policies import policy, scaled, without_warmup

from xshare.cli.output import engine_arguments, number_table, progress_bar, wide_console
from xshare.engines.counters import FIGURES
from xshare.engines.transformers import apply
from xshare.policy import Policy
from xshare.results import Row
from xshare.statistics import interval
from xshare.tasks import LONGEST
from xshare.trace import Trace
from xshare.trace.overlap import overlap
from xshare.workers import Workers

MIXED = Setting(16, 0, True)
PRUNED = [(24, 1), (12, 1), (0, 1), (24, 0)]  # the paper's (m, k0), by layer
WARM = [(24, 1), (12, 1), (0, 1)]
TOPS = (5, 10, 15, 30)
POINTS = 12  # of each layer and policy, in the scatter


def pruned(bench: Bench, setting: Setting, which: Policy, native: Row) -> list[Row]:
    """Prune one layer after the other, then all: one row each, with `steps` as by_step has them."""
    engine = bench.engine(setting.drafts)
    layers: list[int | None] = [*range(engine.about.layers), None]
    rows: list[Row] = [{"layer": layer, "policy": str(which), "steps": []} for layer in layers]
    for _, texts in bench.texts(setting, native, bench.job.forced):
        for row in rows:
            engine.attached = apply(
                engine.model, which, layers=None if row["layer"] is None else [row["layer"]], bypass=False
            )
            row["steps"].append(by_step(texts.compare(engine.attached), engine.attached.layers))
    for row in rows:
        row["steps"] = torch.cat(row["steps"]).tolist()
    return rows


def by_step(texts: list[Any], layers: list[Any]) -> torch.Tensor:
    """[full steps, 5]: mass lost, KL, same, active, active natively. A full step has as many rows as any."""
    step, kl, same = (torch.cat([getattr(text, name) for text in texts]).cpu() for name in ("step", "kl", "same"))
    rows = step.bincount()
    means = torch.stack([step.bincount(weights.double()) / rows.clamp(min=1) for weights in (kl, same)])
    figures = torch.stack([torch.as_tensor(layer.latest).cpu() for layer in layers]).mean(0)[:, : len(rows)]
    mass, active, native = (figures[FIGURES.index(f)] for f in ("mass_kept", "experts_active", "experts_native"))
    return torch.stack([1 - mass, *means, active, native], dim=1)[rows == rows.max()]


def layer_row(row: Row) -> Row:
    mass, kl, same, active, native = np.array(row["steps"]).T
    low, high = interval(kl)
    return {"layer": row["layer"], "policy": row["policy"], "steps": len(kl)} | {
        "active": float(active.mean()),
        "active_native": float(native.mean()),
        "mass_lost": float(mass.mean()),
        "kl": float(kl.mean()),
        "kl_low": low,
        "kl_high": high,
        "same": float(same.mean()),
    }


def correlations(pruned_rows: list[Row], means: list[Row]) -> list[Row]:
    rows = []
    for layer in dict.fromkeys(row["layer"] for row in pruned_rows):
        series = {row["policy"]: np.array(row["steps"])[:, :2] for row in pruned_rows if row["layer"] == layer}
        for name, pairs in [*((name, [steps]) for name, steps in series.items()), (None, list(series.values()))]:
            rows.append({"layer": layer, "policy": name, "steps": sum(map(len, pairs))} | correlate(pairs))
    single = np.array([[row["mass_lost"], row["kl"]] for row in means if row["layer"] is not None])
    return [*rows, {"layer": None, "policy": None, "steps": None} | correlate([single], blocks=len(single))]


def some_points(pruned_rows: list[Row]) -> list[Row]:
    points = []
    for row in pruned_rows:
        steps = row["steps"]
        for mass, kl, *_ in steps[:: max(1, len(steps) // POINTS)][:POINTS]:
            points.append({"layer": row["layer"], "policy": row["policy"]} | {"mass_lost": round(mass, 5), "kl": kl})
    return points


def policies_of(experts: int) -> list[Policy]:
    """The policies that are pruned by layer, and random sets, which lose mass that no policy would choose to lose."""
    return [
        *(policy(numbers, experts) for numbers in PRUNED),
        Policy.parse(f"random:m={scaled(48, experts)},score=full"),
    ]


def by_layer(workers: Workers, results: CellResults, experts: int) -> None:
    policies, native = policies_of(experts), results.native(MIXED)
    pruned_rows: list[Row] = []
    with progress_bar("layers", len(policies)) as advance:
        calls = ((str(which), pruned, (MIXED, which, native)) for which in policies)
        for _, rows in workers.run(calls):
            pruned_rows += rows
            advance(1)
    pruned_rows.sort(
        key=lambda row: list(map(str, policies)).index(row["policy"])
    )  # in the order of the policies, not of arrival
    means = [layer_row(row) for row in pruned_rows]
    results.lists |= {
        "layers": means,
        "correlation": correlations(pruned_rows, means),
        "points": some_points(pruned_rows),
    }
    results.write()


def warm_cells(settings: list[Setting], experts: int) -> tuple[dict[Cell, str], RivalKnobs]:
    cells: dict[Cell, str] = {(setting, None): "native" for setting in settings}
    knobs: RivalKnobs = {}
    for setting in settings:
        for numbers in WARM:
            reference = policy(numbers, experts)
            cells[setting, reference] = f"m={numbers[0]},k0={numbers[1]}"
            knobs[setting, reference, "k0=0"] = without_warmup(reference, experts)
    return cells, knobs


def main(
    model: Annotated[str, typer.Option(help="nano, or a folder.")] = "nano",
    engine_args: Annotated[str, typer.Option(help="device and dtype, as a JSON object.")] = "{}",
    tasks: take.Questions = 1000,
    file: take.QuestionFile = None,
    forced: Annotated[int, typer.Option(min=1, help="Answers that are forced.")] = 320,
    tokens: take.MaxTokens = LONGEST,
    trace: Annotated[
        Path | None,
        typer.Option(help="For the overlap: a trace with full logits; recorded from the questions otherwise."),
    ] = None,
    jobs: take.Jobs = 1,
    threads: take.Threads = None,
    together: take.Together = 128,
    seconds: take.Seconds = None,
    seed: Annotated[int, typer.Option(min=0, help="Other questions, in another order.")] = 0,
    json: take.ResultFile = Path("evidence/assumptions.json"),
) -> None:
    options = engine_arguments(engine_args)
    job = Job(
        model,
        options,
        tasks_of(file, tasks, seed),
        tokens,
        forced,
        seed,
        threads_each(threads, jobs),
        together,
    )
    bench = Bench(job)
    about = bench.engine(0).about
    results = CellResults(
        json, about.record(), job.identity(), KEY, [*LISTS, "overlap", "layers", "correlation", "points"]
    )
    if not results.lists["overlap"]:
        recorded = bench.recorded() if trace is None else Trace.load(trace)
        tops = [top for top in TOPS if top <= about.experts]
        rows = overlap(recorded, tops=tops)
        results.lists["overlap"] = [row | {"domains": len(set(recorded.header.domains))} for row in rows]
        results.write()
    if not results.complete:
        with workers_of(bench, jobs) as workers:
            runner, settings = CellRunner(bench, workers, results, seconds), [MIXED, Setting(16, 0, False)]
            complete = runner.natives(settings)
            if complete and not results.lists["layers"]:
                by_layer(workers, results, about.experts)
            cells, knobs = warm_cells(settings, about.experts)
            if complete and runner.measure("policies", cells) and runner.matches(knobs, bench.recorded):
                results.finish()
    show(results.rows, len(job.tasks))
    show_correlation(results.lists["correlation"])
    say_results(json, results.complete)


def show_correlation(rows: list[Row]) -> None:
    table = number_table("mass lost and KL, by step over all policies", "layer", "Pearson", "95 %", "Spearman", "95 %")
    for row in (row for row in rows if row["policy"] is None and row["steps"] is not None):
        cells = [
            cell
            for name in ("pearson", "spearman")
            for cell in (f"{row[name]:.2f}", f"{row[f'{name}_low']:.2f} to {row[f'{name}_high']:.2f}")
        ]
        table.add_row("all" if row["layer"] is None else str(row["layer"]), *cells)
    wide_console().print(table)


if __name__ == "__main__":
    run(main)
