"""From a first look at many policies to one that holds, if there is one: everything that `xshare tune` measures."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, Literal

from xshare.bench.workload import Workload
from xshare.engines.base import Engine
from xshare.policy import Policy
from xshare.profile import Profile, Weighed
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

TIMED = 48  # tokens of an answer, when candidates are timed
Objective = Literal["otps", "experts"]
Progress = Callable[[str, int], AbstractContextManager[Advance]]


def candidate_sample(found: Candidate) -> Row:
    return {"scan": found.name, "figures": [found.active, found.native, found.mass], "kl": found.kl}


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
        cost: Weighed | None = None,
    ) -> None:
        """`most`: questions a candidate may take in each set. `results` may have samples of an earlier run, and gets
        the new ones. `cost`: the staircase that the engine was opened with, as the profile names it."""
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
            kept=[Round(**sample) for sample in self.kept("right")],
            keep=lambda found: self.keep(asdict(found)),
        )
        with self.progress("native", self.questions.first) as search.advance:
            search.check_tasks()
        self.candidates = self.scanned()
        if self.objective == "otps":
            self.law = self.examined()
        bold = [c for c in front(self.candidates) if self.gain(c) > 1.0]
        if not search.could_hold():
            self.say(self.first_look(search))
        with self.progress("answers", 2 * len(bold).bit_length() * self.most) as search.advance:
            for tried in search.run(bold):
                self.tried.append(tried)
                self.write()
        self.time()
        self.write()

    def kept(self, column: str) -> list[Row]:
        """Samples so far of the kind that has this column."""
        layers = self.engine.about.layer_numbers
        return [upgrade_sample(sample, layers) for sample in self.samples if column in sample]

    def first_look(self, search: Search) -> str:
        best = search.best_case
        asked, total = len(best.right), best.needed(self.max_drop)
        enough = "" if total is None else f", and {total} of each set would"
        return f"{asked} questions cannot show a loss below {self.max_drop:.1%}, even without one that is lost{enough}."

    def scanned(self) -> list[Candidate]:
        scan = Scan(
            self.engine,
            [self.engine.encode(task.prompt) for task in self.questions.round(False, 0)],
            batch=self.batch,
            limit=self.limit,
            known=[sample_candidate(sample) for sample in self.kept("scan")],
            keep=lambda found: self.keep(candidate_sample(found)),
        )
        with self.progress("policies", scan.most) as scan.advance:
            return scan.run()

    def time(self) -> None:
        """How fast those are that may hold."""
        open_ = [each.candidate for each in self.tried if each.state != "fails"]
        workload = Workload(self.batch, self.batch, None, 48, TIMED, "questions", 0)
        with self.progress("speed", len(open_)) as advance:
            for candidate in open_:
                known = [SpeedSample(**sample) for sample in self.kept("timed")]
                found = speed_ratios(
                    self.engine, candidate, workload, known, lambda timed: self.keep(asdict(timed)), advance
                )
                self.speed[candidate.name] = median_interval(found)

    def examined(self) -> Examination:
        about = self.engine.about
        workload = Workload(self.batch, self.batch * waves(about.drafts), None, 48, 24, "questions", 0)
        with self.progress("law", count_runs(about.experts, about.top_k, self.batch, 0, 2)) as advance:
            prompts = workload.prompts_of(self.engine, 0)
            kept = [TimedRun(**sample) for sample in self.kept("point")]
            return examine(
                self.engine,
                prompts,
                [],
                tokens=24,
                repeats=2,
                advance=advance,
                kept=kept,
                keep=lambda repeat: self.keep_all([asdict(each) for each in repeat]),
            )

    def gain(self, candidate: Candidate) -> float:
        """In tokens a second as the law predicts, or in experts."""
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
        tried = {each.candidate.name: each for each in self.tried}
        return [self.row(candidate, tried.get(candidate.name)) for candidate in self.candidates]

    def row(self, candidate: Candidate, tried: CandidateTrials | None) -> Row:
        row: Row = {"policy": candidate.name, "active": candidate.mean_active, "active_native": candidate.mean_native}
        known = self.law is not None or self.objective == "experts"
        row |= {"mass": candidate.mean_mass, "kl": candidate.kl, "predicted": self.gain(candidate) if known else None}
        row |= {} if self.cost is None else {"cost": True}
        row["state"] = "not tried"
        for name, trial in (("search", tried and tried.search), ("unseen", tried and tried.unseen)):
            if trial and trial.right:
                change, (low, high) = trial.change, trial.bounds
                row |= {f"{name}_questions": len(trial.right), f"{name}_change": change.change}
                row |= {f"{name}_low": change.low, f"{name}_high": change.high}
                row |= {f"{name}_bound_low": low, f"{name}_bound_high": high}
                row |= {f"{name}_accuracy": sum(trial.right) / len(trial.right)}
        if tried is not None:
            row["state"] = tried.state
            row |= {"experts_active": list(candidate.active), "experts_native": list(candidate.native)}  # by layer
            right = tried.last.right
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
        """The boldest that does."""
        found = [each for each in self.tried if each.state == "holds"]
        return min(found, key=lambda each: each.candidate.mean_active, default=None)

    @property
    def cut(self) -> float:
        """The share of native's answers that reached the limit without an end."""
        rounds = [Round(**sample) for sample in self.kept("right") if sample["policy"] == "native"]
        return sum(each.cut for each in rounds) / max(1, sum(len(each.right) for each in rounds))

    def loaded(self, tried: CandidateTrials) -> tuple[float, float]:
        """Experts active in the unseen questions, and natively in the same steps; of the first look where the engine
        counted none."""
        found = [tried.unseen.mean(name) for name in ("experts_active", "experts_native")]
        looked = (tried.candidate.mean_active, tried.candidate.mean_native)
        active, native = (have if have is not None else was for have, was in zip(found, looked, strict=True))
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
            "gain_measured": [round(each, 3) for each in self.speed[holds.candidate.name]],
            "unseen_questions": len(holds.unseen.right),
            "change": round(change.change, 4),
            "change_95": [round(change.low, 4), round(change.high, 4)],
            "change_within": [round(each, 4) for each in holds.unseen.bounds],
            "max_drop": self.max_drop,
        }
        assert about.config is not None  # any engine in this process knows it
        return Profile(
            format=2,
            model=about.model,
            config=about.config,
            policy=holds.candidate.name,
            cost=self.cost,
            measured=measured,
            versions=provenance()["versions"],
        )
