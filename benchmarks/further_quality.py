"""What do larger batches, a threshold and a budget per device do to the answers?

    python benchmarks/further_quality.py --jobs 2                                                nano, on two cores
    python benchmarks/further_quality.py --jobs 4 --together 1024 \\
        --engine-args '{"device": "cuda", "dtype": "bfloat16"}'                                   the same, on a GPU

Three settings, questions of different kinds mixed:

  batches of 32 and 64   the presets, the paper's main policies by both readings of its score, and OEA
  batches of 16          the threshold of the paper's Algorithm 1 (tau), and a budget per device (mg) of its Algorithms
                         5 and 6, with experts spread over --devices in blocks. The paper uses `mg=5` for R1's 256
                         experts over 8 devices; with fewer experts the same budget prunes less, so smaller ones are
                         measured too

Columns and rules are those of paper_quality.py: the same questions for every policy, a control that must give native's
tokens, every cell written when it is done, and the same command continues.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from lib import answer_options as take
from lib.answer_bench import Bench, Job, Setting, threads_each, workers_of
from lib.cell_results import CellResults
from lib.cells import CONTROL, KEY, Cell, CellRunner, show, tasks_of
from lib.command import run, say_results
from lib.paper_policies import no_op, paper_name, policy

from xshare.cli.output import engine_arguments
from xshare.policy import RECOMMENDED, Policy
from xshare.tasks import LONGEST

LARGER = [Setting(32, 0, True), Setting(64, 0, True)]
USUAL = Setting(16, 0, True)
MAIN = [(24, 1), (0, 2)]  # (m, k0) of the paper
THRESHOLDS = {"full": [0.5, 0.6, 0.7], "topk": [0.7, 0.8, 0.9]}  # by score, with about as many experts
DEVICE_BUDGETS = [1, 2, 3, 5]


def cells_of(experts: int) -> dict[Cell, str]:
    """In the order in which they are measured, each with what the paper calls it."""
    settings = [USUAL, *LARGER]
    cells: dict[Cell, str] = {(setting, None): "native" for setting in settings}
    cells |= {(setting, no_op(experts)): CONTROL for setting in settings}
    for setting in LARGER:
        cells |= {(setting, Policy.parse(name)): "" for name in RECOMMENDED}
        for numbers in MAIN:
            full = policy(numbers, experts)
            cells[setting, full] = paper_name(numbers)
            if full.batch_budget:
                cells[setting, full.model_copy(update={"score": "topk"})] = paper_name(numbers)
        cells[setting, Policy.parse("oea:k0=2")] = ""
    for mg in DEVICE_BUDGETS:  # as the paper has it, and ours
        cells[USUAL, Policy(warmup=1, device_budget=mg, fill="rounds", score="full")] = f"k0=1,mg={mg}"
        cells[USUAL, Policy(warmup=1, device_budget=mg)] = ""
    for score, thresholds in THRESHOLDS.items():
        for tau in thresholds:
            cells[USUAL, Policy.parse(f"k0=1,tau={tau},score={score}")] = f"k0=1,tau={tau}" if score == "full" else ""
    return cells


def main(
    model: Annotated[str, typer.Option(help="nano, or a folder.")] = "nano",
    engine_args: Annotated[str, typer.Option(help="device and dtype, as a JSON object.")] = "{}",
    devices: Annotated[int, typer.Option(min=1, help="Over which the experts are taken to be spread.")] = 8,
    tasks: take.Questions = 1000,
    file: take.QuestionFile = None,
    forced: take.ForcedAnswers = 320,
    tokens: take.MaxTokens = LONGEST,
    jobs: take.Jobs = 1,
    threads: take.Threads = None,
    together: take.Together = 128,
    seconds: take.Seconds = None,
    seed: Annotated[int, typer.Option(min=0, help="Other questions, in another order.")] = 0,
    json: take.ResultFile = Path("evidence/further_quality.json"),
) -> None:
    options = engine_arguments(engine_args) | {"devices": devices}
    alone = threads_each(threads, jobs)
    bench = Bench(Job(model, options, tasks_of(file, tasks, seed), tokens, forced, seed, alone, together))
    about = bench.engine(0).about
    results = CellResults(json, about.record(), bench.job.identity(), KEY)
    if not results.complete:
        with workers_of(bench, jobs) as workers:
            runner = CellRunner(bench, workers, results, seconds)
            if runner.natives([USUAL, *LARGER]) and runner.measure("policies", cells_of(about.experts)):
                results.finish()
    show(results.rows, len(bench.job.tasks))
    say_results(json, results.complete)


if __name__ == "__main__":
    run(main)
