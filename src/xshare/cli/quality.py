"""xshare quality: what policies do to the answers, question by question, held against native routing."""

from __future__ import annotations

import json as json_format
from collections.abc import Callable
from math import exp
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from xshare import __version__
from xshare.bench.kept import check_kept, samples_kept
from xshare.cli.output import engine_arguments, number_table, progress_bar, wide_console
from xshare.engines.base import Advance, Engine
from xshare.engines.opening import open_engine
from xshare.errors import XShareError
from xshare.policy import Policy
from xshare.quality.files import Task, built_in, read_tasks
from xshare.quality.measure import Outcome, answer, ordered, prompts_of, row_of, unsettled
from xshare.quality.tasks import LONGEST
from xshare.results import Row, provenance, sha256, write_result

Mix = Literal["mixed", "alike", "both"]
FORCED = ("kl", "perplexity")


def quality(
    policy: Annotated[list[str] | None, typer.Option(help="k0=1,m=16, oea:k0=2 ...; may be repeated.")] = None,
    engine: Annotated[
        str, typer.Option(help="transformers, vllm, or the address of a running server.")
    ] = "transformers",
    model: Annotated[str | None, typer.Option(help="A folder, or nano; of a server, one of its models.")] = None,
    tasks: Annotated[
        Path | None, typer.Option(help="JSON lines with question and answer; nano's own otherwise.")
    ] = None,
    questions: Annotated[int, typer.Option(min=1, help="Of nano's own tasks, so many of each kind.")] = 12,
    batch: Annotated[int, typer.Option(min=1, help="Questions decoded together, at most.")] = 16,
    mix: Annotated[
        Mix, typer.Option(help="Batches of several kinds of questions, of one kind each, or both.")
    ] = "mixed",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer, at most.")] = LONGEST,
    neighbours: Annotated[bool, typer.Option("--neighbours", help="Also decode under other neighbours.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Other questions, in another order.")] = 0,
    engine_args: Annotated[str, typer.Option(help="More arguments of the engine, as a JSON object.")] = "{}",
    json: Annotated[
        Path | None, typer.Option(help="Write here after every policy; a file that is there is continued.")
    ] = None,
) -> None:
    """Task accuracy, paired with native's; agreement, divergence, KL; batches of one kind or mixed."""
    policies: list[Policy | None] = [None, *map(Policy.parse, policy or [])]
    asked = built_in(questions, seed) if tasks is None else read_tasks(tasks)
    options = engine_arguments(engine_args)
    setting: Row = {"batch": batch, "tokens": tokens, "seed": seed, "questions": len(asked), "engine_args": options}
    setting["tasks"] = f"nano's, {questions} of each kind" if tasks is None else f"{tasks.name} {sha256(tasks)[:12]}"
    setting["xshare"] = __version__
    check_kept(json, setting)
    opened = open_engine(engine, model, policies=[each for each in policies if each is not None], options=options)
    if (running := opened.about.get("policy")) is not None:  # a server that cannot be changed: measured as it is
        if policy:
            opened.close()
            raise XShareError(f"this server runs {running} and cannot be changed: leave the policies out")
        policies = [None if running == "native" else Policy.parse(running)]
    fingerprint = opened.about | setting
    mixes = [True, False] if mix == "both" else [mix == "mixed"]
    asked_for = {("native" if each is None else str(each), mixed) for each in policies for mixed in mixes}
    rows: list[Row] = []
    try:
        samples = samples_kept(json, fingerprint)
        others = [row for row in rows_kept(json) if (row["policy"], row["mixed"]) not in asked_for]
        for mixed in mixes:
            study = Study(opened, ordered(asked, mixed, seed), mixed, batch, tokens, neighbours)

            def keep(found: list[Row], row: Row) -> None:
                rows.append(row)
                samples.extend(found)
                if json is not None:
                    stamp = provenance(**opened.about, seed=seed, fingerprint=fingerprint)
                    write_result(json, others + rows, stamp, samples=samples)

            study.run(policies, samples, keep)
    finally:
        opened.close()
        if rows:
            show(rows, opened.about, setting)
            if json is not None:
                wide_console().print(f"results: {json}")


class Study:
    """All policies on the same questions in the same order."""

    def __init__(
        self, engine: Engine, tasks: list[Task], mixed: bool, batch: int, limit: int, neighbours: bool
    ) -> None:
        self.engine, self.tasks, self.mixed, self.batch, self.limit = engine, tasks, mixed, batch, limit
        self.neighbours = neighbours
        self.kinds = list(dict.fromkeys(task.kind for task in tasks))
        most = max(sum(task.kind == kind for task in tasks) for kind in self.kinds)
        self.alone = not mixed and most <= batch

    def run(self, policies: list[Policy | None], kept: list[Row], keep: Callable[[list[Row], Row], None]) -> None:
        native: Outcome | None = None
        passes = 1 + self.neighbours + self.engine.forces
        with progress_bar("answers", len(self.tasks) * len(policies) * passes) as advance:
            for policy in policies:
                found, new = self.outcome(policy, 0, kept, advance)
                native = native or found
                drafts = int(self.engine.about.get("drafts") or 0)
                row = row_of(found, native, drafts) | {"mixed": self.mixed, "batch": self.batch, "drafts": drafts}
                row["unsettled"] = None
                if self.neighbours:
                    other, more = self.outcome(policy, 1, kept, advance)
                    row["unsettled"], new = unsettled(found, other), new + more
                if self.alone:
                    row["unsettled"] = None  # every kind is one batch: nobody has other neighbours
                forced, more = self.divergence(policy, native, kept, advance)
                row, new = row | forced, new + more
                for kind in self.kinds:
                    right = [r for r, task in zip(found.right, self.tasks, strict=True) if task.kind == kind]
                    row[f"accuracy {kind}"] = sum(right) / len(right)
                keep(new, row)

    def outcome(
        self, policy: Policy | None, order: int, kept: list[Row], advance: Advance
    ) -> tuple[Outcome, list[Row]]:
        """Decoded, or as it was kept -> with what is to be kept of it. `order` 0 is the tasks' own."""
        key, sample = self.kept(policy, order, kept)
        if sample is not None:
            advance(len(self.tasks))
            return Outcome.of(policy, sample), []
        places = list(range(len(self.tasks)))
        if order:  # the other way round: every question has other neighbours
            places = places[::-1] if not self.mixed else places[::2] + places[1::2]
        asked = [self.tasks[place] for place in places]
        found = answer(
            self.engine, policy, asked, batch=self.batch, limit=self.limit, alike=not self.mixed, advance=advance
        )
        back = {place: number for number, place in enumerate(places)}
        found.right = [found.right[back[place]] for place in range(len(places))]
        found.tokens = [found.tokens[back[place]] for place in range(len(places))]
        return found, [key | found.kept()]

    def kept(self, policy: Policy | None, order: int | str, samples: list[Row]) -> tuple[Row, Row | None]:
        """What a sample is known by, and the sample if it is there."""
        key = {"policy": "native" if policy is None else str(policy), "mixed": self.mixed, "order": order}
        return key, next((each for each in samples if {field: each[field] for field in key} == key), None)

    def divergence(
        self, policy: Policy | None, native: Outcome, kept: list[Row], advance: Advance
    ) -> tuple[Row, list[Row]]:
        """Of native's own answers, teacher-forced -> with what is to be kept of it; nothing where the engine cannot."""
        key, sample = self.kept(policy, "forced", kept)
        if sample is not None:
            advance(len(self.tasks))
            return {name: sample[name] for name in FORCED}, []
        found: Row = dict.fromkeys(FORCED)
        if not self.engine.forces:
            return found, []
        self.engine.use(policy)
        groups = [list(range(len(self.tasks)))]
        if not self.mixed:  # as they were decoded: no batch of two kinds
            groups = [[i for i, task in enumerate(self.tasks) if task.kind == kind] for kind in self.kinds]
        parts = [
            self.engine.diverge(
                prompts_of(self.engine, [self.tasks[i] for i in group]),
                [native.tokens[i] for i in group],
                self.batch,
                advance,
            )
            for group in groups
        ]
        if tokens := sum(part.tokens for part in parts):
            found["kl"] = sum(part.kl for part in parts) / tokens
            found["perplexity"] = exp(sum(part.surprise for part in parts) / tokens)
        return found, [key | found]


def rows_kept(path: Path | None) -> list[Row]:
    """Of an earlier run; whether it fits was checked with its samples."""
    found: list[Row] = json_format.loads(path.read_text())["rows"] if path is not None and path.exists() else []
    return found


def show(rows: list[Row], about: dict[str, Any], setting: Row) -> None:
    title = f"{about['model']} on {about['engine']}, {setting['tasks']}, {setting['batch']} decoded together"
    columns = ["batches", "experts", "mass", "accuracy", "95 %", "change", "95 %", "p", "agreement", "KL"]
    settled = any(row["unsettled"] is not None for row in rows)
    table = number_table(title, "policy", *columns, *(["unsettled"] if settled else []))
    for row in rows:
        cells = [
            "mixed" if row["mixed"] else "alike",
            "-" if row["active"] is None else f"{row['active']:.1f} of {row['active_native']:.1f}",
            "-" if row["mass"] is None else f"{row['mass']:.3f}",
            f"{row['accuracy']:.1%}",
            f"{row['accuracy_low']:.0%} to {row['accuracy_high']:.0%}",
            f"{row['change']:+.1%}",
            f"{row['change_low']:+.1%} to {row['change_high']:+.1%}",
            f"{row['p']:.2g}",
            f"{row['agreement']:.1%}",
            "-" if row["kl"] is None else f"{row['kl']:.4f}",
        ]
        table.add_row(
            row["policy"],
            *cells,
            *(["-" if row["unsettled"] is None else f"{row['unsettled']:.1%}"] if settled else []),
        )
    console = wide_console()
    console.print(table)
    console.print(
        "change: against native on the same questions, with McNemar's p; agreement: share of native's tokens decoded "
        "before the first that differs; KL: of native's next-token distribution, teacher-forced, in nats."
    )
    if rows[0]["kl"] is None:
        console.print("KL is measured in process, and in vLLM without drafts.")
    if settled:
        console.print("unsettled: answers that differ under other neighbours in the batch.")
