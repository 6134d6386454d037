"""xshare tune: how much may be pruned? Finds the boldest policy that holds on unseen questions; writes a profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from xshare.cli import options as take
from xshare.cli.interrupted import plural, says_what_is_kept
from xshare.cli.output import (
    check_local,
    chosen_engine,
    cut_off_notes,
    engine_arguments,
    number_table,
    print_table,
    progress_bar,
    staircase_file,
    unreal_notes,
    wide_console,
)
from xshare.engines.by_name import open_engine
from xshare.errors import XShareError
from xshare.files import check_distinct_paths, check_writable
from xshare.profile import StaircaseFile
from xshare.quality.task_files import read_tasks
from xshare.results import Results, Row, check_resumable, sha256
from xshare.staircase import read_stairs
from xshare.tasks import LONGEST
from xshare.tune.candidate import front
from xshare.tune.questions import Questions
from xshare.tune.search import CandidateTrials
from xshare.tune.tuning import Objective, Tuning
from xshare.version import __version__


def tune(
    engine: take.LocalEngine = None,
    model: take.Model = None,
    max_drop: Annotated[str, typer.Option(help="Accuracy that may be lost, in points: 1%.")] = "1%",
    objective: Annotated[
        Objective | None,
        typer.Option(
            help="Tokens per second by the latency law (otps), or experts saved; by default otps, on a CPU experts."
        ),
    ] = None,
    tasks: take.Tasks = None,
    questions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Questions per policy and set, at most, in rounds of 64, 64, 128, 256 ...",
            show_default="128, or the first round if larger",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=2, help="Questions decoded together.")] = 16,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens per answer, at most.")] = LONGEST,
    drafts: take.Drafts = 0,
    cost: take.Cost = None,
    device: take.Device = None,
    dtype: take.Dtype = None,
    engine_args: take.EngineArgs = "{}",
    out: take.OutAlways = Path("tune.json"),
    profile: Annotated[Path, typer.Option(help="Where to write the profile.")] = Path("profile.yaml"),
) -> None:
    """Search guarantees, prices and budgets; decide by intervals on unseen questions; write a profile."""
    allowed = parse_share(max_drop)
    engine = chosen_engine(engine, out)
    check_local(engine)
    check_distinct_paths([out, profile], [tasks, cost])
    check_writable(profile)
    question_rounds = Questions(None if tasks is None else read_tasks(tasks), batch)
    first = len(question_rounds.round(False, 0))
    questions = questions or max(128, first)
    if questions < first:
        raise XShareError(f"questions must be at least {first}, the first round of a policy, not {questions}")
    options = engine_arguments(engine_args, device=device, dtype=dtype)
    setting: Row = {"batch": batch, "tokens": tokens, "engine_args": options, "xshare": __version__}
    setting["first_round"] = question_rounds.first
    setting["tasks"] = "nano's" if tasks is None else f"{tasks.name} {sha256(tasks)[:12]}"
    stairs = None if cost is None else staircase_file(cost, batch, drafts)
    cost_file = None if cost is None else cost_reference(cost, profile)
    setting |= {} if cost_file is None else {"cost": cost_file.sha256}
    check_resumable(out, setting)
    with says_what_is_kept(out, kept_text):
        opened = open_engine(engine, model, drafts=drafts, options=options, cost=cost)
        record = opened.about.record()
        if unreal := unreal_notes(opened.about):
            opened.close()
            raise XShareError(f"answers would decide nothing here: {' '.join(unreal)}")
        if objective is None:  # a step on a CPU is not bound by loading experts, and says nothing about one on a GPU
            objective = "experts" if opened.about.device.startswith("cpu") else "otps"
        try:
            if stairs is not None:
                stairs.check_batch(batch, opened.about.drafts or drafts)
            tuning = Tuning(
                opened,
                question_rounds,
                max_drop=allowed,
                objective=objective,
                most=questions,
                batch=batch,
                limit=tokens,
                results=Results(out, record | setting, record | {"seed": 0, "max_drop": allowed}),
                progress=progress_bar,
                say=wide_console().print,
                cost=cost_file,
            )
            tuning.run()
        finally:
            opened.close()
    show(tuning, profile, out)
    for note in cut_off_notes(tuning.cut, "native", tokens):
        wide_console().print(note)
    wide_console().print(f"results: {out}; the same command with more --questions goes on from there")


def cost_reference(cost: Path, profile: Path) -> StaircaseFile:
    """The staircase as the profile names it: by a relative path if it lies in the profile's folder or below, so that
    both can move together."""
    staircase = cost.resolve()
    file = (
        staircase.relative_to(profile.resolve().parent)
        if staircase.is_relative_to(profile.resolve().parent)
        else staircase
    )
    return StaircaseFile(file=str(file), sha256=str(read_stairs(cost).sha256))


def kept_text(results: Row) -> str:
    scanned, rounds = (sum(column in sample for sample in results["samples"]) for column in ("scan", "right"))
    return f"a first look at {scanned} policies and {plural(rounds, 'round')} of answers"


def parse_share(text: str) -> float:
    """The share that `2%` or `0.02` says."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise XShareError(f"max-drop must be a share such as 2% or 0.02, not {text!r}")
    return value


def show(tuning: Tuning, profile: Path, out: Path) -> None:
    about, console = tuning.engine.about, wide_console()
    by_cost = "" if tuning.cost is None else ", sets weighed by what they cost"
    title = f"{about.model} on {about.engine}{by_cost}: at most {tuning.max_drop:.1%} of the answers may be lost"
    table = number_table(
        title, "policy", "experts", "mass", "KL", "predicted", "speed", "change", "within", "unseen", "within", ""
    )
    rows = {row["policy"]: row for row in tuning.rows()}
    for candidate in front(tuning.candidates):
        row = rows[candidate.name]
        cells = [
            f"{row['active']:.1f} of {row['active_native']:.1f}",
            f"{row['mass']:.3f}",
            "-" if row["kl"] is None else f"{row['kl']:.4f}",
            f"{row['predicted']:.2f}x",
            f"{row['ratio']:.2f}x" if "ratio" in row else "",
        ]
        for name in ("search", "unseen"):
            measured = f"{name}_change" in row
            cells.append(f"{row[f'{name}_change']:+.1%}" if measured else "")
            within = (f"{row[f'{name}_bound_{end}']:+.1%}" for end in ("low", "high")) if measured else ()
            cells.append(" to ".join(within))
        table.add_row(candidate.name, *cells, row["state"])
    print_table(table, "mass", "KL", "predicted", "change within", "unseen within", "speed", kept_in=f"{out} has them")
    console.print(
        "predicted: tokens a second by the law, or experts; speed: tokens a second against native's, measured; "
        "within: bounds that decide, wider than an interval of 95 %, because they are looked at again and again."
    )
    holds = tuning.holds
    if holds is not None:
        tuning.profile(holds).save(profile)
        active, native = tuning.loaded(holds)
        speed, low, high = tuning.speed[holds.candidate.name]
        console.print(
            f"[bold]{holds.candidate.name}[/bold] holds on {len(holds.unseen.right)} unseen questions, loads "
            f"{1 - active / native:.0%} fewer experts in them, and decodes {speed:.2f}x as fast as native routing "
            f"here ({low:.2f} to {high:.2f}); profile: {profile}"
        )
        bolder = [trials for trials in tuning.tried if trials.candidate.mean_active < holds.candidate.mean_active]
        if undecided := [trials for trials in bolder if trials.state == "undecided"]:
            console.print(f"bolder ones are undecided: {undecided_text(undecided)}")
    else:
        console.print(no_profile_reason(tuning))
        if profile.exists():
            console.print(f"{profile} is of an earlier run, and was left as it is")


def no_profile_reason(tuning: Tuning) -> str:
    """Why there is no profile."""
    tried = tuning.tried
    gains = [tuning.gain(candidate) for candidate in front(tuning.candidates)]
    left_out = sum(gain <= 1.0 for gain in gains)
    slower = f"{left_out} of {len(gains)} policies would be no faster than native routing here"
    if not tried:
        return f"no operating window: {slower}"
    undecided = [trials for trials in tried if trials.state == "undecided"]
    if not undecided:
        lose = f"all of {len(tried)} policies that were tried lose more than {tuning.max_drop:.1%}"
        return f"no operating window: {lose}" + (f"; {slower}" if left_out else "")
    return f"undecided: {undecided_text(undecided)}"


def undecided_text(candidates: Sequence[CandidateTrials]) -> str:
    """About the boldest candidate that would hold if its rates stay, or else the one that came nearest."""
    hopeful = [trials for trials in candidates if trials.needed is not None]
    if hopeful:
        best = min(hopeful, key=lambda trials: trials.candidate.mean_active)
        return f"{progress_text(best)}: about {best.needed} of each set would show it (--questions)"
    best = max(candidates, key=lambda trials: trials.last.change.change)
    return f"{progress_text(best)}: should that stay it would not hold, and more --questions would show it"


def progress_text(trials: CandidateTrials) -> str:
    (low, high), change = trials.last.bounds, trials.last.change.change
    return (
        f"{trials.candidate.name} changes {change:+.1%} of {len(trials.last.right)} answers, within {low:+.1%} and "
        f"{high:+.1%}"
    )
