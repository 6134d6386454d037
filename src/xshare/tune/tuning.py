"""Everything that `xshare tune` measures: from a scan of many policies to the one that holds, if there is one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, Literal

from xshare.bench.workload import Workload
from xshare.engines.base import Engine
from xshare.policy import Policy
from xshare.profile import Profile, StaircaseFile
from xshare.progress import Advance
from xshare.results import Results, Row, provenance
from xshare.statistics import median_interval, share_interval
from xshare.tune.candidate import Candidate, front
from xshare.tune.doctor import Examination, TimedRun, count_runs, examine, waves
from xshare.tune.old_samples import upgrade_sample
from xshare.tune.questions import Questions
from xshare.tune.scan import Scan
from xshare.tune.search import CandidateTrials, Round, Search
from xshare.tune.speed import SpeedSample, speed_ratios

TIMED = 48  # tokens per answer when candidates are timed
Objective = Literal["otps", "experts"]
Progress = Callable[[str, int], AbstractContextManager[Advance]]


def candidate_sample(candidate: Candidate) -> Row:
    return {"scan": candidate.name, "figures": [candidate.active, candidate.native, candidate.mass], "kl": candidate.kl}


def sample_candidate(sample: Row) -> Candidate:
    active, native, mass = map(tuple, sample["figures"])
    return Candidate(Policy.parse(sample["scan"]), active, native, mass, sample["kl"])


class Tuning:
    def __init__(
        self,
        engine: Engine,
        questions: Questions,
        *,
        max_drop: float,
        objective: Objective,
        most: int,
        batch: int,
        limit: int,
        results: Results,
        progress: Progress,
        say: Callable[[str], None],
        cost: StaircaseFile | None = None,
    ) -> None:
        """`most`: questions per candidate and set. `results` may hold samples of an earlier run; new ones are added.
        `cost`: the staircase that the engine was opened with, as the profile names it."""
        self.engine, self.questions, self.max_drop, self.objective = engine, questions, max_drop, objective
        self.most, self.batch, self.limit, self.cost = most, batch, limit, cost
        self.results, self.samples, self.progress, self.say = results, results.samples, progress, say
        self.tried: list[CandidateTrials] = []
        self.candidates: list[Candidate] = []
        self.law: Examination | None = None
        self.speed: dict[str, tuple[float, float, float]] = {}  # measured, by candidate

    def run(self) -> None:
        search = Search(
            self.engine,
            self.questions.round,
            max_drop=self.max_drop,
            most=self.most,
            batch=self.batch,
            limit=self.limit,
            known=[Round(**sample) for sample in self.samples_with("right")],
            keep=lambda answered: self.keep(asdict(answered)),
        )
        with self.progress("native", self.questions.first) as search.advance:
            search.check_tasks()
        self.candidates = self.scan()
        if self.objective == "otps":
            self.law = self.examine()
        promising = [c for c in front(self.candidates) if self.gain(c) > 1.0]
        if not search.could_hold():
            self.say(self.too_few_questions(search))
        with self.progress("answers", 2 * len(promising).bit_length() * self.most) as search.advance:
            for trials in search.run(promising):
                self.tried.append(trials)
                self.write()
        self.time()
        self.write()

    def samples_with(self, column: str) -> list[Row]:
        """The samples that have this column, which tells their kind."""
        layers = self.engine.about.layer_numbers
        return [upgrade_sample(sample, layers) for sample in self.samples if column in sample]

    def too_few_questions(self, search: Search) -> str:
        best = search.best_case
        asked, total = len(best.right), best.needed(self.max_drop)
        enough = "" if total is None else f", and {total} of each set would"
        return f"{asked} questions cannot show a loss below {self.max_drop:.1%}, even without one that is lost{enough}."

    def scan(self) -> list[Candidate]:
        scan = Scan(
            self.engine,
            [self.engine.encode(task.prompt) for task in self.questions.round(False, 0)],
            batch=self.batch,
            limit=self.limit,
            known=[sample_candidate(sample) for sample in self.samples_with("scan")],
            keep=lambda candidate: self.keep(candidate_sample(candidate)),
        )
        with self.progress("policies", scan.most) as scan.advance:
            return scan.run()

    def time(self) -> None:
        """Measure the speed of the candidates that have not failed."""
        remaining = [trials.candidate for trials in self.tried if trials.state != "fails"]
        workload = Workload(self.batch, self.batch, None, 48, TIMED, "questions", 0)
        with self.progress("speed", len(remaining)) as advance:
            for candidate in remaining:
                known = [SpeedSample(**sample) for sample in self.samples_with("timed")]
                ratios = speed_ratios(
                    self.engine, candidate, workload, known, lambda timed: self.keep(asdict(timed)), advance
                )
                self.speed[candidate.name] = median_interval(ratios)

    def examine(self) -> Examination:
        about = self.engine.about
        workload = Workload(self.batch, self.batch * waves(about.drafts), None, 48, 24, "questions", 0)
        with self.progress("law", count_runs(about.experts, about.top_k, self.batch, 0, 2)) as advance:
            prompts = workload.prompts_of(self.engine, 0)
            known = [TimedRun(**sample) for sample in self.samples_with("point")]
            return examine(
                self.engine,
                prompts,
                [],
                tokens=24,
                repeats=2,
                advance=advance,
                known=known,
                keep=lambda repeat: self.keep_all([asdict(run) for run in repeat]),
            )

    def gain(self, candidate: Candidate) -> float:
        """The predicted gain over native: in tokens per second by the law, or in experts."""
        if self.objective == "experts":
            return candidate.mean_native / candidate.mean_active
        assert self.law is not None
        return self.law.law.gain(candidate.mean_native, candidate.mean_active) / self.law.overhead

    def keep(self, sample: Row) -> None:
        self.keep_all([sample])

    def keep_all(self, samples: list[Row]) -> None:
        self.samples += samples
        self.write()

    def rows(self) -> list[Row]:
        tried = {trials.candidate.name: trials for trials in self.tried}
        return [self.row(candidate, tried.get(candidate.name)) for candidate in self.candidates]

    def row(self, candidate: Candidate, trials: CandidateTrials | None) -> Row:
        row: Row = {"policy": candidate.name, "active": candidate.mean_active, "active_native": candidate.mean_native}
        known = self.law is not None or self.objective == "experts"
        row |= {"mass": candidate.mean_mass, "kl": candidate.kl, "predicted": self.gain(candidate) if known else None}
        row |= {} if self.cost is None else {"cost": True}
        row["state"] = "not tried"
        for name, trial in (("search", trials and trials.search), ("unseen", trials and trials.unseen)):
            if trial and trial.right:
                change, (low, high) = trial.change, trial.bounds
                row |= {f"{name}_questions": len(trial.right), f"{name}_change": change.change}
                row |= {f"{name}_low": change.low, f"{name}_high": change.high}
                row |= {f"{name}_bound_low": low, f"{name}_bound_high": high}
                row |= {f"{name}_accuracy": sum(trial.right) / len(trial.right)}
        if trials is not None:
            row["state"] = trials.state
            row |= {"experts_active": list(candidate.active), "experts_native": list(candidate.native)}  # by layer
            right = trials.last.right
            low, high = share_interval(sum(right), len(right))
            row |= {"accuracy": sum(right) / len(right), "accuracy_low": low, "accuracy_high": high}
        if candidate.name in self.speed:
            row |= dict(zip(("ratio", "ratio_low", "ratio_high"), self.speed[candidate.name], strict=True))
        return row

    def write(self) -> None:
        self.results.rows = self.rows()
        self.results.write()

    @property
    def holds(self) -> CandidateTrials | None:
        """The boldest candidate that holds; None if there is none."""
        holding = [trials for trials in self.tried if trials.state == "holds"]
        return min(holding, key=lambda trials: trials.candidate.mean_active, default=None)

    @property
    def cut(self) -> float:
        """The share of native's answers that were cut off at the token limit."""
        rounds = [Round(**sample) for sample in self.samples_with("right") if sample["policy"] == "native"]
        return sum(answered.cut for answered in rounds) / max(1, sum(len(answered.right) for answered in rounds))

    def loaded(self, trials: CandidateTrials) -> tuple[float, float]:
        """Active experts on the unseen questions, and native ones in the same steps; from the scan if the engine
        counted none."""
        counted = [trials.unseen.mean(name) for name in ("experts_active", "experts_native")]
        scanned = (trials.candidate.mean_active, trials.candidate.mean_native)
        active, native = (
            count if count is not None else scan_count for count, scan_count in zip(counted, scanned, strict=True)
        )
        return active, native

    def profile(self, holds: CandidateTrials) -> Profile:
        change = holds.unseen.change
        about = self.engine.about
        measured: dict[str, Any] = {
            "engine": f"{about.engine} {about.version}",
            "batch": self.batch,
            "drafts": about.drafts,
            "drafter": about.drafter,
            "tokens_a_step": None if holds.unseen.tokens_a_step is None else round(holds.unseen.tokens_a_step, 1),
            "active": round(self.loaded(holds)[0], 2),
            "active_native": round(self.loaded(holds)[1], 2),
            "mass": round(holds.candidate.mean_mass, 4),
            "gain_predicted": round(self.gain(holds.candidate), 3),
            "gain_measured": [round(value, 3) for value in self.speed[holds.candidate.name]],
            "unseen_questions": len(holds.unseen.right),
            "change": round(change.change, 4),
            "change_95": [round(change.low, 4), round(change.high, 4)],
            "change_within": [round(value, 4) for value in holds.unseen.bounds],
            "max_drop": self.max_drop,
        }
        assert about.config is not None  # every engine in this process knows it
        return Profile(
            format=2,
            model=about.model,
            config=about.config,
            policy=holds.candidate.name,
            cost=self.cost,
            measured=measured,
            versions=provenance()["versions"],
        )
