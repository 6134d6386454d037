"""What does each policy cost in answers? Policies are chosen on some questions and confirmed on fresh ones.

    python benchmarks/frontier.py --jobs 2                                          nano, as shipped, on two cores
    python benchmarks/frontier.py --model FOLDER --file QUESTIONS --jobs 8 \\
        --engine-args '{"device": "cuda", "dtype": "bfloat16", "draft": "FOLDER"}'      another model, on a GPU

Settings: batches of 16, and of 4 requests with 3 drafts each, questions of different kinds mixed. All policies of PLAN
answer the questions for choosing, the first quarter of every kind. The other questions are then answered by the boldest
policies that lose less than 1, 2 and 5 points, the boldest of those with rho alone, the presets, and the rival with as
many experts. A change on the questions that a policy was chosen by flatters it: what counts is `set: confirming`.

A row is known by its model and a hash of its weights (`weights`): a retrained model is another one. Budgets are for 64
experts and scaled to the model's. Every row is written when it is measured; the same command continues. With --seconds
no cell starts that would not be done by then. Choosing takes at most half of them; policies that it did not reach are
not chosen. Columns are those of paper_quality.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import typer
from lib import answer_options as take
from lib.answer_bench import Bench, Job, Setting, threads_each, workers_of
from lib.cell_results import CellResults, weights_hash
from lib.cells import CONTROL, KEY, Cell, CellRunner, show, tasks_of
from lib.command import run, say_results
from lib.paper_policies import no_op

from xshare.cli.output import engine_arguments
from xshare.policy import RECOMMENDED, Policy
from xshare.quality.task_files import Task
from xshare.results import Row
from xshare.tasks import LONGEST

PLAIN, DRAFTED = Setting(16, 0, True), Setting(4, 3, True)
PLAN_EXPERTS = 64  # the budgets below are for this many
# The most telling first, for a run that is cut short. w=0:4: pruning the first layer does the harm.
PLAN = {
    PLAIN: """
        rho=0.7 rho=0.6 k0=2,m=0 k0=1,m=12,score=full k0=1,m=12 rho=0.6,w=0:4 lam=0.04,p=2 k0=1,m=12,p=3 oea:rho=0.65
        rho=0.8 rho=0.65 rho=0.75 k0=1,m=8,p=3 k0=1,m=16,p=3 rho=0.65,w=0:4 rho=0.7,w=0:4 lam=0.05,p=2,w=0:4
        lam=0.02,p=2 rho=0.55,w=0:4 k0=1,m=8 k0=1,m=8,score=full k0=1,m=16,score=full oea:k0=3 rho=0.5
    """,
    DRAFTED: """
        rho=0.7 rho=0.6 k0=1,m=0,mr=4,score=full k0=1,m=0,mr=4 rho=0.65 rho=0.75 rho=0.65,w=0:4 lam=0.04,p=2
        k0=1,m=0,mr=3,p=3 k0=1,m=0,mr=4,p=3 k0=1,m=12,p=3 rho=0.6,m=4,p=3 rho=0.7,w=0:4 oea:rho=0.65 k0=2,m=0 rho=0.8
        rho=0.6,w=0:4 lam=0.02,p=2 rho=0.55
    """,
}
LOSSES = (0.01, 0.02, 0.05)  # of accuracy: for each, the boldest policy within it is chosen


def planned(setting: Setting, experts: int) -> list[Policy]:
    policies = map(Policy.parse, PLAN[setting].split())
    return [p.model_copy(update={"batch_budget": p.batch_budget * experts // PLAN_EXPERTS}) for p in policies]


def divided(tasks: list[Task]) -> dict[str, list[Task]]:
    """By set: the first quarter of each kind is for choosing, the rest for confirming."""
    kinds = dict.fromkeys(task.kind for task in tasks)
    by_kind = {kind: [task for task in tasks if task.kind == kind] for kind in kinds}
    first = {kind: -(-len(questions) // 4) for kind, questions in by_kind.items()}
    return {
        "choosing": [task for kind in kinds for task in by_kind[kind][: first[kind]]],
        "confirming": [task for kind in kinds for task in by_kind[kind][first[kind] :]],
    }


def chosen(rows: list[Row], setting: Setting) -> list[Policy]:
    """Policies to confirm: the presets, the boldest within each loss (of all, and of those with rho alone), and the
    rival whose active experts are nearest to those of the boldest within 2 points."""
    rows = [row for row in rows if Setting.of(row) == setting and row["policy"] != "native" and row["paper"] != CONTROL]

    def boldest(candidates: list[Row], loss: float) -> list[Row]:
        return sorted((row for row in candidates if row["change"] > -loss), key=share)[:1]

    ours = [row for row in rows if row["method"] == "xshare"]
    alone = [row for row in ours if row["policy"].startswith("k0=0,rho=") and row["policy"].count(",") == 1]
    picked = [row for loss in LOSSES for row in boldest(ours, loss) + boldest(alone, loss)]
    if near := boldest(ours, 0.02):
        rivals = [row for row in rows if row["method"] != "xshare"]
        picked += sorted(rivals, key=lambda row: abs(share(row) - share(near[0])))[:1]
    return list(dict.fromkeys(map(Policy.parse, [*RECOMMENDED, *(row["policy"] for row in picked)])))


def share(row: Row) -> float:
    """Share of native's experts that are loaded."""
    return float(row["active"] / row["active_native"])


def main(
    model: Annotated[str, typer.Option(help="nano, or a folder.")] = "nano",
    engine_args: Annotated[str, typer.Option(help="device, dtype, draft (a folder), as a JSON object.")] = "{}",
    tasks: Annotated[int, typer.Option(min=4, help="Questions in all, as many of each kind.")] = 4000,
    file: take.QuestionFile = None,
    forced: take.ForcedAnswers = 320,
    tokens: take.MaxTokens = LONGEST,
    jobs: take.Jobs = 1,
    threads: take.Threads = None,
    together: take.Together = 512,
    seconds: take.Seconds = None,
    json: take.ResultFile = Path("evidence/frontier.json"),
) -> None:
    options = engine_arguments(engine_args)
    settings = [PLAIN, DRAFTED] if model == "nano" or "draft" in options else [PLAIN]
    if DRAFTED not in settings:
        typer.echo('no draft model: the setting with drafts is left out (--engine-args \'{"draft": "FOLDER"}\')')
    drafts, alone = max(setting.drafts for setting in settings), threads_each(threads, jobs)
    began, complete, weights = time.monotonic(), True, weights_hash(model)

    def opened(name: str, questions: list[Task]) -> tuple[Bench, Callable[[], CellResults]]:
        """The bench of a set of questions, and a call that opens its results once nothing else writes the file."""
        job = Job(model, options, questions, tokens, forced, 0, alone, together, drafts=drafts)
        bench = Bench(job)
        about = bench.engine(0).about
        part: Row = {"model": about.model, "weights": weights, "device": about.device, "dtype": about.dtype}
        part |= {"set": name, "tasks": job.identity()["tasks"]}
        return bench, partial(CellResults, json, about.record(), job.identity(), KEY, part=part)

    sets = {name: opened(name, questions) for name, questions in divided(tasks_of(file, tasks, 0)).items()}
    benches = {name: bench for name, (bench, _) in sets.items()}
    rows: list[Row] = []
    with ExitStack() as stack:
        pools = {name: stack.enter_context(workers_of(bench, jobs)) for name, bench in benches.items()}
        with ThreadPoolExecutor(1) as beside:
            # Native answers to the questions for confirming take longest, and depend on nothing else.
            early = None
            if jobs > 1:
                runner = CellRunner(benches["confirming"], pools["confirming"], sets["confirming"][1](), seconds)
                early = beside.submit(runner.natives, settings, quietly=True)
            for name, (bench, open_results) in sets.items():
                if name == "confirming" and early is not None:
                    early.result()
                results, experts = open_results(), bench.engine(0).about.experts
                if name == "choosing":
                    cells: dict[Cell, str] = {(setting, None): "native" for setting in settings}
                    cells |= {(setting, no_op(experts)): CONTROL for setting in settings}
                    plans = [[(setting, policy) for policy in planned(setting, experts)] for setting in settings]
                    cells |= {cell: "" for turn in zip_longest(*plans) for cell in turn if cell is not None}
                else:
                    cells = {(setting, policy): "" for setting in settings for policy in [None, *chosen(rows, setting)]}
                half = 2 if name == "choosing" else 1
                seconds_left = None if seconds is None else seconds / half - (time.monotonic() - began)
                runner = CellRunner(bench, pools[name], results, seconds_left)
                all_measured = runner.natives(settings) and runner.measure(name, cells)
                rows = [row for row in results.rows if results.is_of_part(row)]
                show(rows, len(bench.job.tasks))
                if all_measured:
                    results.finish()
                complete = complete and all_measured
    say_results(json, complete)


if __name__ == "__main__":
    run(main)
