"""What do the paper's configurations, and rivals at as many experts, do to the answers?

    python benchmarks/paper_quality.py --jobs 2                                  nano, as shipped, on two cores
    python benchmarks/paper_quality.py --model FOLDER --jobs 12 \\
        --engine-args '{"device": "cuda", "dtype": "float32", "draft": "FOLDER"}'     another model, on a GPU

Settings: batches of 16, and of 4 requests with 3 tokens each per step from the real draft model; with mixed kinds of
questions, and one kind at a time. Every policy gets the same questions in the same order; a new one starts as soon as
one has ended, so that batches are full. The paper's budgets are for 128 experts: m is scaled by N/128, rounded half up;
k0 and mr stay. Rivals use the knob at which they load about as many experts as a reference policy, found by replaying
native's routing; their rows have what they loaded while decoding.

  accuracy   with Wilson's interval; change: against native on the same questions, with Agresti and Min's
  agreement  share of native's tokens decoded before the first that differs
  kl         of native's next-token distribution, nats per token, over native's answers forced in full batches; with
             drafts a step reads four tokens of each answer, as if all drafts were accepted
  accepted   tokens per request and step, with drafts
  matched    rivals against their references: change on the same questions, KL of both

The order: native; a control with a budget of N, which must give native's tokens; the main policies; the paper's others;
rivals; the paper's configurations with score=topk. Every cell is written when it is done. The same command continues
from there, and stops before a cell that does not fit into --seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from lib import answer_options as take
from lib.answer_bench import Bench, Job, Setting, threads_each, workers_of
from lib.cell_results import CellResults
from lib.cells import CONTROL, KEY, LISTS, Cell, CellRunner, RivalKnobs, show, tasks_of
from lib.command import run, say_results
from lib.paper_policies import BATCH, DRAFTED, MAIN, REFERENCES, no_op, paper_name, policy, rivals

from xshare.cli.output import engine_arguments
from xshare.results import Row
from xshare.tasks import LONGEST

PLAIN, DRAFTS = (16, 0), (4, 3)  # batch, drafts


def settings_of(drafts: bool) -> list[Setting]:
    ways = [PLAIN, DRAFTS] if drafts else [PLAIN]
    return [Setting(*way, mixed) for way in ways for mixed in (True, False)]


def paper_cells(settings: list[Setting], experts: int) -> dict[Cell, str]:
    """In the order in which they are measured, each with what the paper calls it."""
    cells: dict[Cell, str] = {(setting, None): "native" for setting in settings}
    cells |= {(setting, no_op(experts)): CONTROL for setting in settings}
    for part in (slice(MAIN), slice(MAIN, None)):
        for setting in settings:
            for numbers in (DRAFTED if setting.drafts else BATCH)[part]:
                cells.setdefault((setting, policy(numbers, experts)), paper_name(numbers))
    return cells


def rival_cells(settings: list[Setting], experts: int, top_k: int) -> RivalKnobs:
    references = [(setting, policy(numbers, experts)) for setting in settings for numbers in REFERENCES[setting.drafts]]
    return {
        (setting, reference, name): policies
        for setting, reference in references
        for name, policies in rivals(reference, experts, top_k).items()
    }


def other_score_cells(settings: list[Setting], experts: int) -> dict[Cell, str]:
    """The paper's configurations with score=topk, where greedy has something to choose; in mixed batches."""
    cells: dict[Cell, str] = {}
    for setting in (setting for setting in settings if setting.mixed):
        for numbers in DRAFTED if setting.drafts else BATCH:
            which = policy(numbers, experts)
            if which.batch_budget or which.request_budget:
                cells[setting, which.model_copy(update={"score": "topk"})] = ""
    return cells


def undrafted(results: CellResults, mixed: bool) -> Row:
    """The share of native's answers that are the same without drafts, which must not change any."""
    plain, drafted = (results.native(Setting(*way, mixed))["answers"] for way in (PLAIN, DRAFTS))
    return {"mixed": mixed, "same": sum(a == b for a, b in zip(plain, drafted, strict=True)) / len(plain)}


def main(
    model: Annotated[str, typer.Option(help="nano, or a folder.")] = "nano",
    engine_args: Annotated[str, typer.Option(help="device, dtype, draft (a folder), as a JSON object.")] = "{}",
    tasks: take.Questions = 1000,
    file: take.QuestionFile = None,
    forced: take.ForcedAnswers = 320,
    tokens: take.MaxTokens = LONGEST,
    jobs: take.Jobs = 1,
    threads: take.Threads = None,
    together: take.Together = 128,
    seconds: take.Seconds = None,
    seed: Annotated[int, typer.Option(min=0, help="Other questions, in another order.")] = 0,
    json: take.ResultFile = Path("evidence/paper_quality.json"),
) -> None:
    options = engine_arguments(engine_args)
    drafts = model == "nano" or "draft" in options
    questions, alone = tasks_of(file, tasks, seed), threads_each(threads, jobs)
    job = Job(model, options, questions, tokens, forced, seed, alone, together, drafts=3 if drafts else 0)
    bench = Bench(job)
    about = bench.engine(0).about
    results = CellResults(json, about.record(), job.identity(), KEY, [*LISTS, "undrafted"])
    if not drafts:
        typer.echo('no draft model: settings with drafts are left out (--engine-args \'{"draft": "FOLDER"}\')')
    if not results.complete:
        with workers_of(bench, jobs) as workers:
            runner, settings = CellRunner(bench, workers, results, seconds), settings_of(drafts)
            complete = runner.natives(settings)
            if complete and drafts:
                results.lists["undrafted"] = [undrafted(results, mixed) for mixed in (True, False)]
                results.write()
            experts = about.experts
            complete = complete and runner.measure("policies", paper_cells(settings, experts))
            complete = complete and runner.measure("score=topk", other_score_cells(settings, experts))
            if complete and runner.matches(rival_cells(settings, experts, about.top_k), bench.recorded):
                results.finish()
    show(results.rows, len(job.tasks))
    say_results(json, results.complete)


if __name__ == "__main__":
    run(main)
