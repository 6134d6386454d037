"""xshare quality: what policies do to the answers, question by question, held against native routing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from xshare.cli.output import engine_arguments, lasting, number_table, progress_bar, wide_console
from xshare.engines.base import About
from xshare.engines.opening import open_engine
from xshare.errors import XShareError
from xshare.policy import Policy
from xshare.quality.files import built_in, read_tasks
from xshare.quality.measure import ordered
from xshare.quality.samples import Samples
from xshare.quality.study import Study
from xshare.results import Results, Row, check_continued, read_earlier, sha256
from xshare.tasks import LONGEST
from xshare.version import __version__

Mix = Literal["mixed", "alike", "both"]


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
    drafts: Annotated[int, typer.Option(min=0, help="Drafted tokens a request and step.")] = 0,
    neighbours: Annotated[bool, typer.Option("--neighbours", help="Also decode under other neighbours.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Other questions, in another order.")] = 0,
    engine_args: Annotated[str, typer.Option(help="More arguments of the engine, as a JSON object.")] = "{}",
    against: Annotated[
        Path | None, typer.Option(help="Of a server that cannot be changed: results of the same questions natively.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Write here after every policy; a file that is there is continued.")
    ] = None,
) -> None:
    """Task accuracy, paired with native's; agreement, divergence, KL; batches of one kind or mixed."""
    policies: list[Policy | None] = [None, *map(Policy.parse, policy or [])]
    asked = built_in(questions, seed) if tasks is None else read_tasks(tasks)
    options = engine_arguments(engine_args)
    setting: Row = {"batch": batch, "tokens": tokens, "seed": seed, "questions": len(asked)}
    setting["engine_args"] = lasting(options)
    setting["tasks"] = f"nano's, {questions} of each kind" if tasks is None else f"{tasks.name} {sha256(tasks)[:12]}"
    setting["xshare"] = __version__
    check_continued(json, setting)
    named = [each for each in policies if each is not None]
    opened = open_engine(engine, model, drafts=drafts, policies=named, options=options)
    if (running := opened.about.policy) is not None:  # a server that cannot be changed: measured as it is
        if policy:
            opened.close()
            raise XShareError(f"this server runs {running} and cannot be changed: leave the policies out")
        policies = [None if running == "native" else Policy.parse(running)]
    elif against is not None:
        opened.close()
        raise XShareError("this engine is measured natively, too: --against is for a server that cannot be changed")
    elif not policy and opened.serves is not None:
        policies.append(opened.serves)
    record = opened.about.record()
    rows: list[Row] = []
    try:
        results = Results(json, record | setting, record | {"seed": seed})
        for mixed in [True, False] if mix == "both" else [mix == "mixed"]:
            study = Study(opened, ordered(asked, mixed, seed), mixed, batch, tokens, neighbours, results)
            native = None if against is None else Samples(natives(against, setting), mixed).answers(None, 0)
            if against is not None and native is None:
                raise XShareError(f"{str(against)!r} holds no answers of native routing to these questions")
            with progress_bar("answers", study.answers(len(policies))) as advance:
                for row in study.run(policies, native, advance):
                    rows.append(row)
                    results.put([row], by=("policy", "mixed"))
                    results.write()
    finally:
        opened.close()
        if rows:
            show(rows, opened.about, setting)
            if json is not None:
                wide_console().print(f"results: {json}")


def natives(path: Path, setting: Row) -> list[Row]:
    """Samples of another result file, which must be of the same questions."""
    same = {name: setting[name] for name in ("batch", "tokens", "seed", "questions", "tasks")}
    if not path.is_file():
        raise XShareError(f"{str(path)!r} does not exist: --against takes a result file of `xshare quality`")
    samples: list[Row] = read_earlier(path, same, "samples", whole=False)["samples"]
    return samples


def held_against(row: Row) -> list[str]:
    if row["change"] is None:
        return ["-"] * 4
    interval = f"{row['change_low']:+.1%} to {row['change_high']:+.1%}"
    return [f"{row['change']:+.1%}", interval, f"{row['p']:.2g}", f"{row['agreement']:.1%}"]


def show(rows: list[Row], about: About, setting: Row) -> None:
    title = f"{about.model} on {about.engine}, {setting['tasks']}, {setting['batch']} decoded together"
    columns = ["batches", "experts", "mass", "accuracy", "95 %", "change", "95 %", "p", "agreement", "KL"]
    settled = any(row["unsettled"] is not None for row in rows)
    drafted = any("accepted" in row for row in rows)
    more = [*(["accepted"] if drafted else []), *(["unsettled"] if settled else [])]
    table = number_table(title, "policy", *columns, *more)
    for row in rows:
        cells = [
            "mixed" if row["mixed"] else "alike",
            "-" if row["active"] is None else f"{row['active']:.1f} of {row['active_native']:.1f}",
            "-" if row["mass"] is None else f"{row['mass']:.3f}",
            f"{row['accuracy']:.1%}",
            f"{row['accuracy_low']:.0%} to {row['accuracy_high']:.0%}",
            *held_against(row),
            "-" if row["kl"] is None else f"{row['kl']:.4f}",
        ]
        if drafted:
            cells.append(f"{row['accepted']:.2f}" if "accepted" in row else "-")
        if settled:
            cells.append("-" if row["unsettled"] is None else f"{row['unsettled']:.1%}")
        table.add_row(row["policy"], *cells)
    console = wide_console()
    console.print(table)
    console.print(
        "change: against native on the same questions, with McNemar's p; agreement: share of native's tokens decoded "
        "before the first that differs; KL: of native's next-token distribution, teacher-forced, in nats."
    )
    if rows[0]["cut"] > 0.05:
        console.print(
            f"{rows[0]['cut']:.0%} of the answers of {rows[0]['policy']} were cut off at {setting['tokens']} tokens: "
            "more --tokens might let them end."
        )
    if rows[0]["change"] is None:
        console.print("Native routing was not measured: --against FILE takes results of a server that runs natively.")
    if rows[0]["kl"] is None:
        console.print("KL is measured in process, and in vLLM without drafts.")
    if drafted:
        console.print("accepted: tokens a request and step, its own among them.")
    if settled:
        console.print("unsettled: answers that differ under other neighbours in the batch.")
