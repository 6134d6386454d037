"""xshare quality: what policies do to the answers, compared with native routing question by question."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

import typer

from xshare.cli import options as take
from xshare.cli.interrupted import plural, says_what_is_kept
from xshare.cli.output import (
    chosen_engine,
    cut_off_notes,
    engine_arguments,
    number_table,
    print_table,
    progress_bar,
    result_options,
    wide_console,
)
from xshare.cli.protection import show_protected
from xshare.cli.texts import FORCED, GIVEN, measure_texts
from xshare.engines.base import About, Engine
from xshare.engines.by_name import open_engine
from xshare.engines.client import Access
from xshare.errors import XShareError
from xshare.files import is_file, quoted_path
from xshare.policy import Policy
from xshare.quality.answering import Outcome, ordered
from xshare.quality.comparison import Study
from xshare.quality.harness import harness_tasks, is_harness, task_fingerprint
from xshare.quality.protected import ProtectedStudy
from xshare.quality.stored_answers import Samples
from xshare.quality.task_files import QuestionSet, built_in, read_tasks
from xshare.quality.texts import Text, TextStudy, read_texts
from xshare.results import Results, Row, check_resumable, read_earlier, sha256
from xshare.tasks import LONGEST
from xshare.version import __version__

Mix = Literal["mixed", "alike", "both"]
QUESTIONS = 12  # of each kind of nano's own


def quality(
    engine: take.Engine = None,
    model: take.Model = None,
    policy: take.Policies = None,
    tasks: take.TasksOrNames = None,
    task_folder: take.TaskFolder = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            help="Read these texts instead of asking questions, and compare perplexity: JSON lines with text."
        ),
    ] = None,
    given: Annotated[
        int, typer.Option(min=1, help="Tokens of a text that are read as its prompt, and not forced.")
    ] = GIVEN,
    chat: Annotated[
        bool, typer.Option("--chat", help="Ask lm-evaluation-harness's tasks by the model's chat template.")
    ] = False,
    questions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Questions of each kind of nano's own; for lm-evaluation-harness, the first of each task.",
            show_default=f"{QUESTIONS}; all",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Questions decoded together, at most.")] = 16,
    mix: Annotated[
        Mix, typer.Option(help="Batches of mixed kinds of questions, of one kind each (alike), or both.")
    ] = "mixed",
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens per answer, at most.",
            show_default=f"{LONGEST}; for a harness task, its own limit; of a text, {FORCED}",
        ),
    ] = None,
    drafts: take.Drafts = 0,
    neighbours: Annotated[
        bool, typer.Option("--neighbours", help="Also decode with other neighbours in the batch.")
    ] = False,
    protect: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Check instead that protected requests answer as natively; the share to protect, such as 0.25.",
        ),
    ] = None,
    seed: take.Seed = 0,
    device: take.Device = None,
    dtype: take.Dtype = None,
    engine_args: take.EngineArgs = "{}",
    api_key: take.ApiKey = None,
    ca_file: take.CaFile = None,
    against: Annotated[
        Path | None,
        typer.Option(
            help="For a server whose policy is fixed: a result file of the same questions under native routing."
        ),
    ] = None,
    out: take.Out = None,
) -> None:
    """Task accuracy, paired with native's; agreement, divergence, KL; perplexity of texts; batches of one kind or
    mixed."""
    policies: list[Policy | None] = [None, *map(Policy.parse, policy or [])]
    if (chat or task_folder is not None) and (tasks is None or not is_harness(tasks)):
        option = "--chat" if chat else "--task-folder"
        raise XShareError(f"{option} is for tasks of lm-evaluation-harness: name them, with --tasks")
    question_sets: list[QuestionSet] = []
    read: list[Text] = []
    if texts is not None:
        others = {"--tasks": tasks, "--questions": questions, "--neighbours": neighbours, "--protect": protect}
        if refused := next((name for name, value in (others | {"--against": against}).items() if value), None):
            raise XShareError(f"{refused} is for questions, and --texts reads texts: leave one of the two out")
        read = read_texts(texts)
        task_names = f"{texts.name} {sha256(texts)[:12]}"
        setting: Row = {"batch": batch, "tokens": tokens or FORCED, "given": given, "questions": len(read)}
    else:
        question_sets, task_names = load_questions(tasks, task_folder, chat, questions, tokens, seed)
        setting = {"batch": batch, "tokens": max(item.tokens for item in question_sets)}
        setting["questions"] = sum(len(item.tasks) for item in question_sets)
    if question_sets and question_sets[0].name is not None and mix != "mixed":
        raise XShareError("--mix is for questions of several kinds: tasks of lm-evaluation-harness are one kind each")
    options = engine_arguments(engine_args, device=device, dtype=dtype)
    setting |= {"seed": seed, "engine_args": result_options(options), "tasks": task_names, "xshare": __version__}
    if protect is not None:
        if protect == 0 or neighbours or against is not None or not policy:
            raise XShareError(
                "--protect takes a share of the requests above 0 and policies to protect them from: leave --neighbours "
                "and --against out"
            )
        setting["protect"] = protect
    check_resumable(out, setting)
    with says_what_is_kept(out, kept_text):
        named_policies = [item for item in policies if item is not None]
        access, chosen = Access(api_key, ca_file), chosen_engine(engine, out)
        opened = open_engine(chosen, model, drafts=drafts, policies=named_policies, options=options, access=access)
        policies = measurable_policies(opened, policies, against)
        record = opened.about.record()
        try:
            results = Results(out, record | setting, record | {"seed": seed})
            if read:
                study = TextStudy(opened, read, batch, given, setting["tokens"], seed, results)
                measure_texts(study, policies, mixes(mix), results)
            else:
                measure(opened, question_sets, policies, setting, mix, neighbours, against, protect, results)
        finally:
            opened.close()


def load_questions(
    tasks: str | None, folder: Path | None, chat: bool, questions: int | None, tokens: int | None, seed: int
) -> tuple[list[QuestionSet], str]:
    """The question sets, and their name in result files."""
    if tasks is None:
        per_kind = questions or QUESTIONS
        return [QuestionSet(built_in(per_kind, seed), tokens or LONGEST)], f"nano's, {per_kind} of each kind"
    if is_harness(tasks):
        sets = harness_tasks(tasks, folder, questions, chat)
        return [replace(one, tokens=tokens or one.tokens) for one in sets], ", ".join(map(task_fingerprint, sets))
    path = Path(tasks)
    return [QuestionSet(read_tasks(path), tokens or LONGEST)], f"{path.name} {sha256(path)[:12]}"


def kept_text(results: Row) -> str:
    """How many policies are finished, and how many answers of the unfinished one."""
    rows = len(results["rows"])
    text = f"{rows} finished {'policy' if rows == 1 else 'policies'}"
    begun = [(sample["policy"], len(sample["ended"])) for sample in results["samples"] if "ended" in sample]
    return text + "".join(f" and {plural(number, 'answer')} of {policy}" for policy, number in begun)


def measurable_policies(engine: Engine, policies: list[Policy | None], against: Path | None) -> list[Policy | None]:
    """The policies that this engine can be measured under. If the request cannot be met, closes it and raises."""
    requested = len(policies) > 1
    if (running := engine.about.policy) is not None:  # a server with a fixed policy is measured as it is
        if requested:
            engine.close()
            raise XShareError(f"this server runs {running} and cannot be changed: leave the policies out")
        return [None if running == "native" else Policy.parse(running)]
    if against is not None:
        engine.close()
        raise XShareError("this engine is measured natively, too: --against is for a server that cannot be changed")
    return policies if requested or engine.serves is None else [None, engine.serves]


def measure(
    engine: Engine,
    question_sets: list[QuestionSet],
    policies: list[Policy | None],
    setting: Row,
    mix: Mix,
    neighbours: bool,
    against: Path | None,
    protect: float | None,
    results: Results,
) -> None:
    """Measure all policies, in mixed batches or batches of one kind. With `protect`, that share of the requests is
    protected. Shows what was measured even after an error."""
    rows: list[Row] = []
    key = ("policy", "mixed") if protect is None else ("policy", "mixed", "control")
    try:
        for question_set, mixed in product(question_sets, mixes(mix)):
            shuffled = replace(question_set, tasks=ordered(question_set.tasks, mixed, setting["seed"]))
            if protect is None:
                study = Study(engine, shuffled, mixed, setting["batch"], neighbours, results)
                native = None if against is None else native_answers(against, setting, mixed, question_set.name)
                answers, run = study.answers(len(policies)), partial(study.run, policies, native)
            else:
                guarded = ProtectedStudy(engine, shuffled, mixed, setting["batch"], protect, results)
                pruned = [policy for policy in policies if policy is not None]
                answers, run = guarded.answers(len(pruned)), partial(guarded.run, pruned)
            with progress_bar(question_set.name or "answers", answers) as advance:
                for row in run(advance=advance):
                    rows.append(row)
                    results.put([row], by=(*key, *(["task"] if "task" in row else [])))
                    results.write()
    finally:
        if rows:
            (show if protect is None else show_protected)(rows, engine.about, setting)
            if results.path is not None:
                wide_console().print(f"results: {results.path}")


def mixes(mix: Mix) -> list[bool]:
    return [True, False] if mix == "both" else [mix == "mixed"]


def native_answers(path: Path, setting: Row, mixed: bool, task: str | None) -> Outcome:
    """The answers of native routing in another result file."""
    answers = Samples(native_samples(path, setting), mixed, task).answers(None, 0)
    if answers is None:
        raise XShareError(f"{str(path)!r} holds no answers of native routing to these questions")
    return answers


def native_samples(path: Path, setting: Row) -> list[Row]:
    """The samples of another result file, which must hold the same questions."""
    same = {name: setting[name] for name in ("batch", "tokens", "seed", "questions", "tasks")}
    if not is_file(path):
        raise XShareError(f"{quoted_path(path)} does not exist: --against takes a result file of `xshare quality`")
    samples: list[Row] = read_earlier(path, same, "samples", whole=False)["samples"]
    return samples


def change_cells(row: Row) -> list[str]:
    if row["change"] is None:
        return ["-"] * 4
    interval = f"{row['change_low']:+.1%} to {row['change_high']:+.1%}"
    return [f"{row['change']:+.1%}", interval, f"{row['p']:.2g}", f"{row['agreement']:.1%}"]


def show(rows: list[Row], about: About, setting: Row) -> None:
    title = f"{about.model} on {about.engine}, {setting['tasks']}, {setting['batch']} decoded together"
    by_task = "task" in rows[0]
    columns = ["task" if by_task else "batches", "experts", "mass", "accuracy", "95 %", "change", "95 %", "p"]
    columns += ["agreement", "KL"]
    settled = any(row["unsettled"] is not None for row in rows)
    drafted = any("accepted" in row for row in rows)
    optional = [*(["accepted"] if drafted else []), *(["unsettled"] if settled else [])]
    table = number_table(title, "policy", *columns, *optional)
    for row in rows:
        cells = [
            row["task"] if by_task else "mixed" if row["mixed"] else "alike",
            "-" if row["active"] is None else f"{row['active']:.1f} of {row['active_native']:.1f}",
            "-" if row["mass"] is None else f"{row['mass']:.3f}",
            f"{row['accuracy']:.1%}",
            f"{row['accuracy_low']:.0%} to {row['accuracy_high']:.0%}",
            *change_cells(row),
            "-" if row["kl"] is None else f"{row['kl']:.4f}",
        ]
        if drafted:
            cells.append(f"{row['accepted']:.2f}" if "accepted" in row else "-")
        if settled:
            cells.append("-" if row["unsettled"] is None else f"{row['unsettled']:.1%}")
        table.add_row(row["policy"], *cells)
    print_table(table, "KL", "p", "accuracy 95 %", "mass", "accepted", "batches", "unsettled")
    console = wide_console()
    console.print(
        "change: against native on the same questions, with McNemar's p; agreement: share of native's tokens decoded "
        "before the first that differs; KL: of native's next-token distribution, teacher-forced, in nats."
    )
    for note in cut_off_notes(rows[0]["cut"], rows[0]["policy"], setting["tokens"]):
        console.print(note)
    if rows[0]["change"] is None:
        console.print("Native routing was not measured: --against FILE takes results of a server that runs natively.")
    if rows[0]["kl"] is None:
        console.print("KL is measured in process, and in vLLM without drafts.")
    if drafted:
        console.print("accepted: tokens per request and step, including the one that is not drafted.")
    if settled:
        console.print("unsettled: answers that differ under other neighbours in the batch.")
