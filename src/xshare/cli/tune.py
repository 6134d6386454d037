"""xshare tune: how much may be pruned? The boldest policy that holds on unseen questions, as a profile to serve."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from xshare import __version__
from xshare.bench.kept import check_kept, samples_kept
from xshare.bench.workload import Workload
from xshare.cli.output import check_local, engine_arguments, number_table, progress_bar, wide_console
from xshare.engines.base import Engine
from xshare.engines.opening import open_engine
from xshare.errors import XShareError
from xshare.files import check_writable
from xshare.policy import Policy
from xshare.profile import Profile
from xshare.quality.files import Task, nano_prompt, read_tasks
from xshare.quality.measure import ordered
from xshare.quality.tasks import ASKED, LONGEST, held_out_questions
from xshare.results import Row, provenance, sha256, write_result
from xshare.statistics import median_interval, share_interval
from xshare.tune.doctor import Examination, examine, runs
from xshare.tune.scan import Candidate, front, looks, scan
from xshare.tune.search import Search, Tried, span
from xshare.tune.speed import ratios

EACH = 8  # questions of each kind in the first round
FIRST = 4  # the first round of a task file, in batches
SCANNED = 48  # tokens of an answer, when candidates are looked at
Objective = Literal["otps", "experts"]


def tune(
    max_drop: Annotated[str, typer.Option(help="Accuracy that may be lost, in points: 1%.")] = "1%",
    objective: Annotated[
        Objective | None,
        typer.Option(help="Tokens a second by the latency law, or experts saved; by itself otps, on a CPU experts."),
    ] = None,
    engine: Annotated[str, typer.Option(help="transformers or vllm.")] = "transformers",
    model: Annotated[str | None, typer.Option(help="A folder, or nano.")] = None,
    tasks: Annotated[
        Path | None, typer.Option(help="JSON lines with question and answer; nano's own otherwise.")
    ] = None,
    questions: Annotated[
        int, typer.Option(min=1, help="The most a policy may take, of each set; rounds of 64, 64, 128, 256 ...")
    ] = 128,
    batch: Annotated[int, typer.Option(min=2, help="Questions decoded together.")] = 16,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer, at most.")] = LONGEST,
    engine_args: Annotated[str, typer.Option(help="More arguments of the engine, as a JSON object.")] = "{}",
    json: Annotated[Path, typer.Option(help="Everything measured; a file that is there is continued.")] = Path(
        "tune.json"
    ),
    profile: Annotated[Path, typer.Option(help="Where to write the profile.")] = Path("profile.yaml"),
) -> None:
    """Search warm-up and budgets, also by layer; decide by intervals on unseen questions; write a profile."""
    allowed = share(max_drop)
    check_local(engine)
    check_writable(profile)
    given = None if tasks is None else read_tasks(tasks)
    options = engine_arguments(engine_args)
    setting: Row = {"batch": batch, "tokens": tokens, "engine_args": options, "xshare": __version__}
    setting["first_round"] = EACH * len(ASKED) if given is None else FIRST * batch
    setting["tasks"] = "nano's" if tasks is None else f"{tasks.name} {sha256(tasks)[:12]}"
    check_kept(json, setting)
    opened = open_engine(engine, model, policies=[Policy(warmup=1)], options=options)
    if objective is None:  # a step on a CPU is not bound by loading experts, and says nothing about one on a GPU
        objective = "experts" if str(opened.about["device"]).startswith("cpu") else "otps"
    fingerprint = opened.about | setting
    try:
        kept = samples_kept(json, fingerprint)
        Tuning(opened, given, allowed, objective, questions, batch, tokens, json, fingerprint, kept).run(profile)
    finally:
        opened.close()


def share(text: str) -> float:
    """`2%` or `0.02`."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise XShareError(f"max-drop must be a share such as 2% or 0.02, not {text!r}")
    return value


def own_questions(unseen: bool, number: int) -> list[Task]:
    """Nano's, a round of them: no question comes twice or is in both sets. Kinds that are used up are left out."""
    found = []
    begin, length = (2 * EACH * each for each in span(number))
    for kind in ASKED:
        try:
            both = held_out_questions(kind, begin + length)[begin:]
        except ValueError:
            continue
        found += [Task(nano_prompt(q), q.answer, kind) for q in both[int(unseen) :: 2]]
    return found


def to_sample(found: Candidate) -> Row:
    budgets = None if found.budgets is None else list(found.budgets)
    figures = [found.active, found.native, found.mass]
    return {"scan": str(found.policy), "budgets": budgets, "figures": figures, "kl": found.kl}


def from_sample(sample: Row) -> Candidate:
    budgets = None if sample["budgets"] is None else tuple(sample["budgets"])
    active, native, mass = map(tuple, sample["figures"])
    return Candidate(Policy.parse(sample["scan"]), budgets, active, native, mass, sample["kl"])


class Tuning:
    def __init__(
        self,
        engine: Engine,
        given: list[Task] | None,
        max_drop: float,
        objective: Objective,
        questions: int,
        batch: int,
        limit: int,
        json: Path,
        fingerprint: Row,
        kept: list[Row],
    ) -> None:
        self.engine, self.max_drop, self.objective = engine, max_drop, objective
        # A question that stands there twice would be in both sets.
        self.given = None if given is None else list({task.prompt: task for task in given}.values())
        self.questions, self.batch, self.limit, self.json, self.fingerprint = questions, batch, limit, json, fingerprint
        self.samples = kept
        self.tried: list[Tried] = []
        self.candidates: list[Candidate] = []
        self.law: Examination | None = None
        self.speed: dict[str, tuple[float, float, float]] = {}  # measured, by candidate

    def run(self, profile: Path) -> None:
        self.candidates = self.scanned()
        if self.objective == "otps":
            self.law = self.examined()
        bold = [c for c in front(self.candidates) if self.gain(c) > 1.0]
        answered = [sample for sample in self.samples if "right" in sample]
        with progress_bar("answers", 2 * len(bold).bit_length() * self.questions) as advance:
            search = Search(
                self.engine,
                self.rounds,
                max_drop=self.max_drop,
                most=self.questions,
                batch=self.batch,
                limit=self.limit,
                kept=answered,
                keep=self.keep,
                advance=advance,
            )
            if not search.could_hold():
                wide_console().print(self.first_look(search))
            for tried in search.run(bold):
                self.tried.append(tried)
                self.write()
        self.time()
        self.write()
        self.show(profile)

    def first_look(self, search: Search) -> str:
        best = search.best_case()
        asked, total = len(best.right), best.needed(self.max_drop)
        enough = "" if total is None else f", and {total} of each set would"
        return f"{asked} questions cannot show a loss below {self.max_drop:.1%}, even without one that is lost{enough}."

    def scanned(self) -> list[Candidate]:
        known = [from_sample(sample) for sample in self.samples if "scan" in sample]
        about = self.engine.about
        prompts = [self.engine.encode(task.prompt) for task in self.rounds(False, 0)[: self.batch]]
        with progress_bar("policies", looks(about["experts"], about["top_k"])) as advance:
            return scan(self.engine, prompts, SCANNED, advance, known, lambda found: self.keep(to_sample(found)))

    def time(self) -> None:
        """How fast those are that may hold."""
        open_ = [each.candidate for each in self.tried if each.state != "fails"]
        workload = Workload(self.batch, self.batch, None, 48, SCANNED, "questions", 0)
        with progress_bar("speed", len(open_)) as advance:
            for candidate in open_:
                found = ratios(self.engine, candidate, workload, tuple(self.samples), self.keep, advance)
                self.speed[candidate.name] = median_interval(found)

    def examined(self) -> Examination:
        workload = Workload(self.batch, self.batch, None, 48, 24, "questions", 0)
        about = self.engine.about
        with progress_bar("law", runs(about["experts"], about["top_k"], self.batch, 0, 2)) as advance:
            prompts = workload.prompts_of(self.engine, 0)
            kept = tuple(self.samples)
            return examine(
                self.engine, prompts, [], tokens=24, repeats=2, advance=advance, kept=kept, keep=self.keep_all
            )

    def gain(self, candidate: Candidate) -> float:
        """In tokens a second as the law predicts, or in experts."""
        if self.objective == "experts":
            return candidate.mean_native / candidate.mean_active
        assert self.law is not None
        return self.law.law.gain(candidate.mean_native, candidate.mean_active) / self.law.overhead

    def rounds(self, unseen: bool, number: int) -> list[Task]:
        """Of a task file, one half is for searching and one for deciding."""
        if self.given is None:
            return ordered(own_questions(unseen, number), mixed=True)
        half = ordered(self.given, mixed=True)[int(unseen) :: 2]
        begin, length = (FIRST * self.batch * each for each in span(number))
        return half[begin : begin + length]

    def keep(self, sample: Row) -> None:
        self.keep_all([sample])

    def keep_all(self, samples: list[Row]) -> None:
        self.samples += samples
        self.write()

    def rows(self) -> list[Row]:
        tried = {each.candidate.name: each for each in self.tried}
        return [self.row(candidate, tried.get(candidate.name)) for candidate in self.candidates]

    def row(self, candidate: Candidate, tried: Tried | None) -> Row:
        row: Row = {"policy": candidate.name, "active": candidate.mean_active, "active_native": candidate.mean_native}
        known = self.law is not None or self.objective == "experts"
        row |= {"mass": candidate.mean_mass, "kl": candidate.kl, "predicted": self.gain(candidate) if known else None}
        row["state"] = "not tried"
        for name, trial in (("search", tried and tried.search), ("unseen", tried and tried.unseen)):
            if trial and trial.right:
                change, (low, high) = trial.change, trial.bounds
                row |= {f"{name}_questions": len(trial.right), f"{name}_change": change.change}
                row |= {f"{name}_low": change.low, f"{name}_high": change.high}
                row |= {f"{name}_bound_low": low, f"{name}_bound_high": high}
                row |= {f"{name}_accuracy": sum(trial.right) / len(trial.right)}
        row |= {"experts_active": list(candidate.active), "experts_native": list(candidate.native)}  # by layer
        if tried is not None:
            row["state"] = tried.state
            right = tried.last.right
            low, high = share_interval(sum(right), len(right))
            row |= {"accuracy": sum(right) / len(right), "accuracy_low": low, "accuracy_high": high}
        if candidate.name in self.speed:
            row |= dict(zip(("ratio", "ratio_low", "ratio_high"), self.speed[candidate.name], strict=True))
        return row

    def write(self) -> None:
        stamp = provenance(**self.engine.about, seed=0, fingerprint=self.fingerprint, max_drop=self.max_drop)
        write_result(self.json, self.rows(), stamp, samples=self.samples)

    def show(self, profile: Path) -> None:
        about, console = self.engine.about, wide_console()
        title = f"{about['model']} on {about['engine']}: at most {self.max_drop:.1%} of the answers may be lost"
        table = number_table(
            title, "policy", "experts", "mass", "KL", "predicted", "speed", "change", "within", "unseen", "within", ""
        )
        rows = {row["policy"]: row for row in self.rows()}
        for candidate in front(self.candidates):
            row = rows[candidate.name]
            cells = [
                f"{row['active']:.1f} of {row['active_native']:.1f}",
                f"{row['mass']:.3f}",
                "-" if row["kl"] is None else f"{row['kl']:.4f}",
                f"{row['predicted']:.2f}x",
                f"{row['ratio']:.2f}x" if "ratio" in row else "",
            ]
            for name in ("search", "unseen"):
                there = f"{name}_change" in row
                cells.append(f"{row[f'{name}_change']:+.1%}" if there else "")
                within = (f"{row[f'{name}_bound_{end}']:+.1%}" for end in ("low", "high")) if there else ()
                cells.append(" to ".join(within))
            table.add_row(candidate.name, *cells, row["state"])
        console.print(table)
        console.print(
            "predicted: tokens a second by the law, or experts; speed: tokens a second against native's, measured; "
            "within: bounds that decide, stricter than 95 % because they are looked at again and again."
        )
        holding = [each for each in self.tried if each.state == "holds"]
        holds = min(holding, key=lambda each: each.candidate.mean_active, default=None)
        if holds is not None:
            self.write_profile(holds, profile)
            active, native = self.loaded(holds)
            speed, low, high = self.speed[holds.candidate.name]
            console.print(
                f"[bold]{holds.candidate.name}[/bold] holds on {len(holds.unseen.right)} unseen questions, loads "
                f"{1 - active / native:.0%} fewer experts in them, and decodes {speed:.2f}x as fast as native routing "
                f"here ({low:.2f} to {high:.2f}); profile: {profile}"
            )
            bolder = [each for each in self.tried if each.candidate.mean_active < holds.candidate.mean_active]
            if undecided := [each for each in bolder if each.state == "undecided"]:
                console.print(f"bolder ones are undecided: {self.undecided(undecided)}")
        else:
            console.print(self.without(self.tried))
            if profile.exists():
                console.print(f"{profile} is of an earlier run, and was left as it is")
        console.print(f"results: {self.json}; the same command with more --questions goes on from there")

    def loaded(self, tried: Tried) -> tuple[float, float]:
        """Experts active in the unseen questions, and natively in the same steps; of the first look where the engine
        counted none."""
        found = [tried.unseen.mean(name) for name in ("experts_active", "experts_native")]
        looked = (tried.candidate.mean_active, tried.candidate.mean_native)
        active, native = (have if have is not None else was for have, was in zip(found, looked, strict=True))
        return active, native

    def without(self, tried: Sequence[Tried]) -> str:
        """Why there is no profile."""
        gains = [self.gain(candidate) for candidate in front(self.candidates)]
        left_out = sum(gain <= 1.0 for gain in gains)
        slower = f"{left_out} of {len(gains)} policies would be no faster than native routing here"
        if not tried:
            return f"no operating window: {slower}"
        open_ = [each for each in tried if each.state == "undecided"]
        if not open_:
            lose = f"all of {len(tried)} policies that were tried lose more than {self.max_drop:.1%}"
            return f"no operating window: {lose}" + (f"; {slower}" if left_out else "")
        return f"undecided: {self.undecided(open_)}"

    def undecided(self, tried: Sequence[Tried]) -> str:
        """Of the boldest that would hold if it went on so, or else of the one that came nearest."""
        hopeful = [each for each in tried if each.needed is not None]
        if hopeful:
            best = min(hopeful, key=lambda each: each.candidate.mean_active)
            return f"{self.so_far(best)}: about {best.needed} of each set would show it (--questions)"
        best = max(tried, key=lambda each: each.last.change.change)
        return f"{self.so_far(best)}: should that stay it would not hold, and more --questions would show it"

    def so_far(self, tried: Tried) -> str:
        (low, high), change = tried.last.bounds, tried.last.change.change
        return (
            f"{tried.candidate.name} changes {change:+.1%} of {len(tried.last.right)} answers, within {low:+.1%} and "
            f"{high:+.1%}"
        )

    def write_profile(self, holds: Tried, path: Path) -> None:
        change = holds.unseen.change
        about = self.engine.about
        measured: dict[str, Any] = {
            "engine": f"{about['engine']} {about['version']}",
            "batch": self.batch,
            "rows_a_step": None if holds.unseen.rows_a_step is None else round(holds.unseen.rows_a_step, 1),
            "active": round(self.loaded(holds)[0], 2),
            "active_native": round(self.loaded(holds)[1], 2),
            "mass": round(holds.candidate.mean_mass, 4),
            "gain_predicted": round(self.gain(holds.candidate), 3),
            "gain_measured": [round(each, 3) for each in self.speed[holds.candidate.name]],
            "unseen_questions": len(holds.unseen.right),
            "change": round(change.change, 4),
            "change_95": [round(change.low, 4), round(change.high, 4)],
            "change_within": [round(each, 4) for each in holds.unseen.bounds],
            "max_drop": self.max_drop,
        }
        budgets = holds.candidate.budgets
        Profile(
            model=str(about["model"]),
            config=about["config"],
            policy=str(holds.candidate.policy),
            budgets=None if budgets is None else list(budgets),
            measured=measured,
            versions=provenance()["versions"],
        ).save(path)
