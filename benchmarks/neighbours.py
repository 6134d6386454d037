"""Does an answer change with its neighbours in the batch, and how far does its KL spread?

    python benchmarks/neighbours.py --jobs 2                                        nano
    python benchmarks/neighbours.py --policy careful --policy balanced --policy fast --json FILE
    python benchmarks/neighbours.py --model FOLDER --jobs 8 --engine-args '{"device": "cuda", "dtype": "float32"}'

The same questions are decoded several times in different orders, so that each has other mates in its batch of 16, of
all kinds (mixed) or of its own. A set shared by a batch makes an answer depend on its neighbours. Native routing does
not, nor does `topk`, which looks at one token only. Both are controls: what they show is rounding.

  changed   share of prompts whose text is not the same with all mates; changed_answer: whose final answer is not
  distinct  different texts of a prompt, on average
  flipped   share of prompts that are answered with some mates and not with others
  accuracy_least, accuracy_most   over the orders
  kl_spread   standard deviation of a prompt's KL over its mates, mean over the prompts; kl_prompts: of the prompts' own
              means, to compare with; kl_worst: each prompt's worst, mean over the prompts
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from lib import answer_options as take
from lib.answer_bench import Bench, Job, Setting, threads_each, workers_of
from lib.cell_results import CellResults
from lib.cells import KEY, Cell, CellRunner, tasks_of
from lib.command import run, say_results
from lib.paper_policies import paper_name, policy, scaled

from xshare.cli.output import engine_arguments, number_table, wide_console
from xshare.policy import Policy
from xshare.results import Row
from xshare.statistics import share_interval
from xshare.tasks import LONGEST, extract_answer

SETTINGS = [Setting(16, 0, True), Setting(16, 0, False)]
# The paper's (m, k0), and rivals in terms of its m=24 and of a quarter of all experts; the main ones first.
POLICIES: list[str | tuple[int, int]] = [
    (24, 1),
    "k0=1,m={m}",
    (0, 2),
    (0, 1),
    (24, 0),
    "topk:k=2",
    "lynx:drop={quarter}",
]


def orders(count: int, sets: int, seed: int) -> list[list[int]]:
    """Orders of the questions as lists of places; the first is the given order."""
    rng = random.Random(seed)
    return [list(range(count)), *(rng.sample(range(count), count) for _ in range(sets - 1))]


def spread(bench: Bench, setting: Setting, which: Policy | None, native: Row, sets: int) -> tuple[Row, list[bool]]:
    """One policy with `sets` sets of mates -> its row, and which prompts were answered whatever the mates."""
    engine, tasks = bench.engine(setting.drafts), bench.tasks(setting)
    texts: list[list[tuple[int, ...]]] = [[] for _ in tasks]  # by prompt, then by order
    right: list[list[bool]] = [[] for _ in tasks]
    kl: list[list[float]] = [[] for _ in tasks]
    for places in orders(len(tasks), sets, bench.job.seed):
        outcome = bench.decode(setting, which, places)
        for i, tokens, good in zip(places, outcome.tokens, outcome.right, strict=True):
            texts[i].append(tuple(tokens))
            right[i].append(good)
        engine.use(which)
        for forced_places, forced in bench.texts(setting, native, places=places):
            for i, text in zip(forced_places, forced.compare(engine.attached), strict=True):
                kl[i].append(float(text.kl.mean()))
    answers = [
        {extract_answer(text) or text for text in engine.tokenizer.batch_decode(prompt_texts)} for prompt_texts in texts
    ]
    different = [len(set(prompt_texts)) for prompt_texts in texts]
    flipped = [len(set(prompt_texts)) > 1 for prompt_texts in right]
    by_order = np.array(right).mean(0)
    row: Row = (
        {"model": engine.about.model}
        | asdict(setting)
        | {
            "policy": "native" if which is None else str(which),
            "method": "native" if which is None else which.method,
            "prompts": len(tasks),
            "sets": sets,
            "control": which is None or which.method in ("topk", "skip"),  # does not look at the neighbours
            "active": outcome.stats.mean["experts_active"],
            "active_native": outcome.stats.mean["experts_native"],
            **share("changed", [count > 1 for count in different]),
            **share("changed_answer", [len(finals) > 1 for finals in answers]),
            "distinct": float(np.mean(different)),
            **share("flipped", flipped),
            "accuracy": float(by_order.mean()),
            "accuracy_least": float(by_order.min()),
            "accuracy_most": float(by_order.max()),
        }
    )
    return row | kl_row([marks for marks in kl if marks]), [all(marks) for marks in right]


def share(name: str, which: list[bool]) -> Row:
    low, high = share_interval(sum(which), len(which))
    return {name: sum(which) / len(which), f"{name}_low": low, f"{name}_high": high}


def kl_row(kl: list[list[float]]) -> Row:
    table = np.array(kl)  # [prompts, sets]
    return {
        "kl": float(table.mean()),
        "kl_spread": float(table.std(1).mean()),
        "kl_prompts": float(table.mean(1).std()),
        "kl_worst": float(table.max(1).mean()),
    }


def main(
    model: Annotated[str, typer.Option(help="nano, or a folder.")] = "nano",
    engine_args: Annotated[str, typer.Option(help="device and dtype, as a JSON object.")] = "{}",
    prompts: take.Questions = 320,
    sets: Annotated[int, typer.Option(min=2, help="Sets of mates.")] = 5,
    file: take.QuestionFile = None,
    tokens: take.MaxTokens = LONGEST,
    jobs: take.Jobs = 1,
    threads: take.Threads = None,
    together: take.Together = 128,
    seconds: take.Seconds = None,
    seed: Annotated[int, typer.Option(min=0, help="Other questions, in other orders.")] = 0,
    policies: Annotated[
        list[str] | None, typer.Option("--policy", help="Only these, into a file of their own; may be repeated.")
    ] = None,
    json: take.ResultFile = Path("evidence/neighbours.json"),
) -> None:
    options, questions = engine_arguments(engine_args), tasks_of(file, prompts, seed)
    job = Job(model, options, questions, tokens, len(questions), seed, threads_each(threads, jobs), together)
    bench = Bench(job)
    about = bench.engine(0).about
    only = {"policies": policies} if policies else {}
    results = CellResults(json, about.record(), job.identity() | {"sets": sets} | only, KEY)
    if not results.complete:
        with workers_of(bench, jobs) as workers:
            runner = CellRunner(bench, workers, results, seconds)
            # With no more of a kind than fit into a batch, nobody has other mates.
            alike = max(Counter(task.kind for task in questions).values()) > SETTINGS[0].batch
            settings = SETTINGS if alike else SETTINGS[:1]
            if not alike:
                typer.echo("no kind has more prompts than fit into a batch: batches of one kind are left out")
            cells = cells_of(settings, about.experts, policies or POLICIES)
            if runner.natives(settings) and runner.measure("mates", cells, partial(spread, sets=sets), sets):
                results.finish()
    show(results.rows)
    say_results(json, results.complete)
    if rounding := [row for row in results.rows if row["control"] and row["changed"]]:
        worst = max(row["changed"] for row in rounding)
        typer.echo(f"controls are not still: up to {worst:.1%} of their texts change, by rounding alone", err=True)


def cells_of(settings: list[Setting], experts: int, forms: Sequence[str | tuple[int, int]]) -> dict[Cell, str]:
    policies: dict[Policy | None, str] = {None: "native"}
    for form in forms:
        if isinstance(form, str):
            policies[Policy.parse(form.format(m=scaled(24, experts), quarter=experts // 4))] = ""
        else:
            policies[policy(form, experts)] = paper_name(form)
    return {(setting, which): paper for which, paper in policies.items() for setting in settings}


def show(rows: list[Row]) -> None:
    columns = ["batches", "experts", "changed", "other answer", "flipped", "texts", "accuracy", "KL", "spread"]
    table = number_table("other mates in the batch", "policy", *columns)
    for row in rows:
        table.add_row(
            row["policy"],
            "mixed" if row["mixed"] else "alike",
            f"{row['active']:.1f} of {row['active_native']:.1f}",
            f"{row['changed']:.1%}",
            f"{row['changed_answer']:.1%}",
            f"{row['flipped']:.1%}",
            f"{row['distinct']:.2f}",
            f"{row['accuracy_least']:.1%} to {row['accuracy_most']:.1%}",
            f"{row['kl']:.4f}",
            f"{row['kl_spread']:.4f}",
        )
    wide_console().print(table)


if __name__ == "__main__":
    run(main)
