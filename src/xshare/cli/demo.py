"""xshare demo: what policies do to a trained model's answers, and what speed they gain on this machine."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from xshare import models
from xshare.bench.speedups import compare_speeds
from xshare.cli import options as take
from xshare.cli.interrupted import says_what_is_kept
from xshare.cli.output import number_table, print_table, progress_bar, wide_console
from xshare.engines.by_name import open_engine, open_large
from xshare.errors import XShareError
from xshare.files import check_writable
from xshare.kernels.cpu.call import METHODS as COMPILED
from xshare.latency_law import WORTH, fit_law
from xshare.policy import RECOMMENDED, Policy
from xshare.progress import Advance
from xshare.quality.answering import Outcome, answer, ordered, row_of
from xshare.quality.task_files import Task, built_in
from xshare.report.labels import PRESETS, policy_label
from xshare.results import Results, Row
from xshare.results.columns import count_of
from xshare.statistics import interval_names
from xshare.tasks import ASKED, LONGEST
from xshare.tune.cpu_products import find_cliff, onednn
from xshare.workers import Workers

TIMED = 8  # rows: with more, an expert gets so many that a CPU takes longer to multiply than to read its weights
# The paper's own policy at half of the experts, and rivals: vLLM's pull request 35551, a smaller k, Lynx.
POLICIES = [*RECOMMENDED, "k0=1,m=12,score=full", "logit-sum:m=16", "topk:k=2", "lynx:drop=12"]


def demo(
    policy: take.Policies = None,
    questions: Annotated[int, typer.Option(min=1, help="Questions of each kind.")] = 3,
    batch: Annotated[int, typer.Option(min=1, help="Questions decoded together.")] = 16,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens per answer, at most.")] = LONGEST,
    jobs: Annotated[int, typer.Option(min=1, help="Policies measured at once, each on one core.")] = 2,
    speed: Annotated[
        bool,
        typer.Option(help="Also time the presets, on a model of 1.6 GB with random weights that routes as nano does."),
    ] = True,
    out: take.OutRows = None,
) -> None:
    """Answers of nano under policies and rivals, the speed of the presets on this machine, and what to type next."""
    policies = [None, *map(Policy.parse, policy or POLICIES)]
    if out is not None and out.exists():
        raise XShareError(f"{str(out)!r} is there already: remove it, or name another file")
    if out is not None:
        check_writable(out)
    models.check_files(models.folder("nano"))
    with says_what_is_kept(out, lambda results: f"{len(results['rows'])} of {len(policies)} policies", goes_on=False):
        rows, timed = measure(policies, questions, batch, tokens, jobs, speed, out)
    if out is not None:
        wide_console().print(f"results: {out}")
    if speed and policy is None:
        wide_console().print(advice(rows, timed))


def measure(
    policies: list[Policy | None], questions: int, batch: int, tokens: int, jobs: int, speed: bool, out: Path | None
) -> tuple[list[Row], list[Row]]:
    """Rows of answers and, with `speed`, of times; shown and written as they are measured."""
    tasks = ordered(built_in(questions), mixed=True)
    outcomes: dict[Policy | None, Outcome] = {}
    rows: list[Row] = []
    results: Results | None = None  # opened when the first worker reports its engine
    cliff = find_cliff()
    if cliff is not None:
        wide_console().print(f"oneDNN is switched off for this demo: {cliff}")
    workers = Workers(partial(NanoWorker, cliff is None), jobs)
    # Methods without a compiled kernel take longest; started last, they would leave the other cores idle.
    order = sorted(policies, key=lambda policy: policy is None or policy.method in COMPILED)
    with progress_bar("answers", len(tasks) * len(policies)) as advance:
        workers.tell(advance)
        for finished_policy, (outcome, about) in workers.run(
            (policy, NanoWorker.answer, (policy, tasks, batch, tokens)) for policy in order
        ):
            outcomes[finished_policy] = outcome
            if None not in outcomes:  # the others are compared with native
                continue
            rows = [
                {"model": "nano"} | row_of(outcomes[policy], outcomes[None])
                for policy in policies
                if policy in outcomes
            ]
            if results is None:
                setting = {"batch": batch, "questions": len(tasks), "seed": 0, "jobs": jobs}
                results = Results(out, None, about | setting, lists=())
            results.rows = rows
            results.write()  # keep what was measured, whatever happens next
    workers.close()
    show(rows, len(tasks), batch)
    timed: list[Row] = []
    if speed:
        with onednn(cliff is None):
            timed = time_presets(TIMED)
        show_speed(timed)
        if results is not None:
            results.rows = rows + timed
            results.write()
    return rows, timed


class NanoWorker:
    """The engine of one worker process."""

    def __init__(self, with_onednn: bool, advance: Advance) -> None:
        import torch

        torch.set_num_threads(1)  # nano is too small for more threads to help
        self.engine, self.advance = open_engine("transformers", "nano"), advance
        self.with_onednn = with_onednn

    def answer(self, policy: Policy | None, tasks: list[Task], batch: int, limit: int) -> tuple[Outcome, Row]:
        with onednn(self.with_onednn):
            outcome = answer(self.engine, policy, tasks, batch=batch, limit=limit, advance=self.advance)
        return outcome, self.engine.about.record()


def show(rows: list[Row], questions: int, batch: int) -> None:
    title = f"nano, {questions} held-out questions of {len(ASKED)} kinds, {batch} decoded together"
    table = number_table(title, "policy", "experts", "of native", "mass", "accuracy", "change", "95 %", "agreement")
    for row in rows:
        table.add_row(
            policy_label(row["policy"]),
            f"{row['active']:.1f}",
            f"{row['active'] / row['active_native']:.0%}",
            f"{row['mass']:.3f}",
            f"{row['accuracy']:.1%}",
            f"{row['change']:+.1%}" if row["method"] != "native" else "",
            f"{row['change_low']:+.0%} to {row['change_high']:+.0%}" if row["method"] != "native" else "",
            f"{row['agreement']:.1%}",
        )
    print_table(table)
    wide_console().print(
        "experts: loaded per layer and step; mass: gating weight they keep; change: of native's answers to the same "
        "questions; agreement: share of native's tokens decoded before the first that differs"
    )


def time_presets(batch: int, steps: int = 12, repeats: int = 9, **size: int) -> list[Row]:
    """Time native routing and the presets, interleaved, on experts too large for a cache -> one row each."""
    policies = {name: Policy.parse(name) for name in RECOMMENDED}
    with progress_bar("speed", 4 + (repeats + 1) * (1 + len(policies))) as advance:
        texts = [task.prompt for task in ordered(built_in(-(-batch // len(ASKED))), mixed=True)[:batch]]
        engine = open_large(texts, steps, **size)
        advance(4)
        rows = compare_speeds(engine, policies, batch=batch, steps=steps, repeats=repeats, advance=advance)
    about = engine.about
    return [row | {"expert_mb": (about.expert_bytes or 0) / about.layers / 1e6} for row in rows]


def show_speed(rows: list[Row]) -> None:
    title = f"speed on this machine: {rows[0]['batch']} rows, experts of {rows[0]['expert_mb']:.1f} MB, random weights"
    within, marks = interval_names([count_of(row, "ratio") for row in rows])
    table = number_table(title, "policy", "experts", "of native", "ms a step", "times native", within)
    for row, mark in zip(rows, marks, strict=True):
        table.add_row(
            policy_label(row["policy"]),
            f"{row['active']:.1f}",
            f"{row['active'] / row['active_native']:.0%}",
            f"{row['step_ms']:.0f}",
            f"{row['ratio']:.2f}x",
            f"{row['ratio_low']:.2f} to {row['ratio_high']:.2f}{mark}",
        )
    print_table(table)
    wide_console().print(verdict(rows))


def verdict(rows: list[Row]) -> str:
    """The latency law of this CPU, and the share of a step that experts take."""
    law = fit_law([row["active"] for row in rows], [row["step_ms"] for row in rows])
    share = max(0.0, law.share(rows[0]["active"])) if law.b > 0 else 0.0
    return f"law: {law}; experts are {share:.0%} of a step here"


def advice(answers: list[Row], timed: list[Row]) -> str:
    """What to type next: the fastest preset whose gain is certain and that costs nano no answer, or at most one."""
    change = {row["policy"]: row["change"] for row in answers}
    one_answer = 1.01 / answers[0]["questions"]
    faster = [row for row in timed if row["policy"] in PRESETS and row["ratio_low"] > WORTH]
    if not faster:
        return "none of the presets is worth it on this machine: ask `xshare doctor` about the one that serves"
    harmless = ([row for row in faster if change.get(row["policy"], -1.0) >= -loss] for loss in (0, one_answer))
    best = max(next(filter(None, harmless), faster[:1]), key=lambda row: row["ratio"])
    name = PRESETS[best["policy"]]
    change_text = f"{change[best['policy']]:+.1%} of nano's answers"
    return (
        f'next: xshare.apply(model, "{name}"), or vllm serve MODEL --additional-config '
        f'\'{{"xshare": {{"policy": "{name}"}}}}\': {best["ratio"]:.2f}x here, {change_text}'
    )
