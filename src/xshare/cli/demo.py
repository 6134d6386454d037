"""xshare demo: a real mixture of experts answers questions, by itself and under policies: what is saved, and lost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from xshare import models
from xshare.cli.output import number_table, progress_bar, wide_console
from xshare.engines.opening import open_engine
from xshare.policy import Policy
from xshare.progress import Advance
from xshare.quality.files import Task, built_in
from xshare.quality.measure import Outcome, answer, ordered, row_of
from xshare.results import Results, Row, check_replaced
from xshare.tasks import ASKED, LONGEST
from xshare.workers import Workers

POLICIES = ["careful", "balanced", "fast", "k0=1,m=16,score=full", "k0=1,m=0", "logit-sum:m=16", "topk:k=2"]


def demo(
    policy: Annotated[
        list[str] | None, typer.Option("--policy", help="Instead of the usual ones; may be repeated.")
    ] = None,
    questions: Annotated[int, typer.Option(min=1, help="Questions of each kind.")] = 5,
    batch: Annotated[int, typer.Option(min=1, help="Questions decoded together.")] = 16,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of an answer, at most.")] = LONGEST,
    jobs: Annotated[int, typer.Option(min=1, help="Policies at once, each on one core.")] = 2,
    json: Annotated[Path | None, typer.Option(help="Write the results here.")] = None,
) -> None:
    """Decode held-out questions with nano, natively and under policies: experts saved, answers kept or lost."""
    policies = [None, *map(Policy.parse, policy or POLICIES)]
    if json is not None:
        check_replaced(json)
    models.check(models.folder("nano"))
    asked = ordered(built_in(questions), mixed=True)
    found: dict[Policy | None, Outcome] = {}
    rows: list[Row] = []
    results: Results | None = None  # opened when a worker says what its engine is
    workers = Workers(Nano, jobs)
    with progress_bar("answers", len(asked) * len(policies)) as advance:
        workers.tell(advance)
        for which, (outcome, about) in workers.run(
            (each, Nano.answer, (each, asked, batch, tokens)) for each in policies
        ):
            found[which] = outcome
            if None not in found:  # native is what the others are held against
                continue
            rows = [row_of(found[each], found[None]) for each in policies if each in found]
            if results is None:
                setting = {"batch": batch, "questions": len(asked), "seed": 0, "jobs": jobs}
                results = Results(json, None, about | setting, lists=())
            results.rows = rows
            results.write()  # what was measured stays, whatever comes after
    workers.close()
    show(rows, len(asked), batch)
    if json is not None:
        wide_console().print(f"results: {json}")


class Nano:
    """A worker's engine."""

    def __init__(self, advance: Advance) -> None:
        import torch

        torch.set_num_threads(1)  # it is too small for more to help
        self.engine, self.advance = open_engine("transformers", "nano"), advance

    def answer(self, policy: Policy | None, asked: list[Task], batch: int, limit: int) -> tuple[Outcome, Row]:
        found = answer(self.engine, policy, asked, batch=batch, limit=limit, advance=self.advance)
        return found, self.engine.about.record()


def show(rows: list[Row], asked: int, batch: int) -> None:
    title = f"nano, {asked} held-out questions of {len(ASKED)} kinds, {batch} decoded together"
    table = number_table(title, "policy", "experts", "of native", "mass", "accuracy", "95 %", "agreement", "tokens/s")
    for row in rows:
        table.add_row(
            row["policy"],
            f"{row['active']:.1f}",
            f"{row['active'] / row['active_native']:.0%}",
            f"{row['mass']:.3f}",
            f"{row['accuracy']:.1%}",
            f"{row['accuracy_low']:.0%} to {row['accuracy_high']:.0%}",
            f"{row['agreement']:.1%}",
            f"{row['tokens_per_s']:.0f}",
        )
    wide_console().print(table)
    wide_console().print(
        "experts: loaded a layer and step; mass: gating weight they keep; agreement: share of native's tokens decoded "
        "before the first that differs. Tokens/s are this CPU's, where a step hardly gets faster: see docs/vllm.md."
    )
