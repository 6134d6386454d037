"""From cheap signals to a decision: the boldest policy whose loss, judged by its interval, stays within the allowed.

Candidates stand from the boldest to the mildest, and harm is taken to fall along them: they are tried from the middle
on, bolder ones after one that holds or may, milder ones after any other. They answer questions in rounds, paired with
native routing. One that holds on the questions it was found with is tried again on questions that nobody has looked
at: only that counts. Where questions suffice, those between the boldest that holds and the bolder ones that do not are
tried as well.

The second round is as large as the first, and every later one as all before it: batches are full in large ones. The
bounds hold however often one looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from xshare.engines.base import Engine
from xshare.progress import Advance, quiet
from xshare.quality.answering import answer
from xshare.quality.paired import Paired, change_bounds, paired, questions_needed
from xshare.quality.task_files import Task, TaskError
from xshare.tune.candidate import Candidate

CHANCE = 0.05  # that one of all policies is said to hold and does not
State = Literal["holds", "fails", "undecided"]
Rounds = Callable[[bool, int], list[Task]]  # (unseen, round) -> its questions; none when they are used up


def round_span(number: int) -> tuple[int, int]:
    """Where a round begins and how long it is, in first rounds."""
    return (0, 1) if number == 0 else (1 << number - 1, 1 << number - 1)


@dataclass(frozen=True)
class Round:
    """The answers of one policy to one round of questions, as a result file has them."""

    policy: str
    unseen: bool
    round: int
    turn: int | None  # of a candidate on unseen questions: Trial's
    right: list[bool]
    steps: int
    rows: int
    mean: dict[str, float]  # what a step loaded and kept
    cut: int = 0  # answers that reached the limit without an end; of files from before, unknown


@dataclass
class Trial:
    """One candidate on one set of questions."""

    unseen: bool
    turn: int = 1  # how many candidates have been tried on this set, with this one
    looks: int = 0
    native: list[bool] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    loads: list[tuple[int, int, dict[str, float]]] = field(default_factory=list)  # steps, rows and figures of a round

    @property
    def change(self) -> Paired:
        return paired(self.native, self.right)

    @property
    def bounds(self) -> tuple[float, float]:
        """Between what the change is: to decide by."""
        change = self.change
        return change_bounds(change.lost, change.won, len(self.right), self.alpha)

    def mean(self, figure: str) -> float | None:
        """Over the decode steps in which these questions were answered; None where the engine counted none."""
        known = [(steps, means[figure]) for steps, _, means in self.loads if figure in means and steps]
        return sum(n * value for n, value in known) / sum(n for n, _ in known) if known else None

    @property
    def tokens_a_step(self) -> float | None:
        steps = sum(steps for steps, _, _ in self.loads)
        return sum(rows for _, rows, _ in self.loads) / steps if steps else None

    @property
    def alpha(self) -> float:
        """The chance of being wrong about this candidate: less for every one that comes after others, so that all of
        them together stay below CHANCE."""
        return CHANCE / (self.turn * (self.turn + 1))

    def state(self, max_drop: float) -> State:
        if not self.right:
            return "undecided"
        low, high = self.bounds
        return "holds" if low >= -max_drop else "fails" if high < -max_drop else "undecided"

    def needed(self, max_drop: float) -> int | None:
        """About how many questions would let it hold, if it goes on as it does; None where none would."""
        change = self.change
        return questions_needed(change.lost, change.won, len(self.right), max_drop, self.alpha)


@dataclass
class CandidateTrials:
    candidate: Candidate
    search: Trial
    unseen: Trial
    max_drop: float

    @property
    def state(self) -> State:
        """A policy is right only where it holds on unseen questions."""
        states = {trial.state(self.max_drop) for trial in (self.search, self.unseen)}
        return "fails" if "fails" in states else "holds" if states == {"holds"} else "undecided"

    @property
    def may_hold(self) -> bool:
        """It holds, or what it lost so far is within the allowed."""
        if self.state == "undecided" and self.search.right:
            return min(trial.change.change for trial in (self.search, self.unseen) if trial.right) >= -self.max_drop
        return self.state == "holds"

    @property
    def last(self) -> Trial:
        """The set on which it was tried last."""
        return self.unseen if self.unseen.right else self.search

    @property
    def needed(self) -> int | None:
        """About how many questions of each set would let it hold; None where none would."""
        return self.last.needed(self.max_drop) if self.last.right else None


class Search:
    def __init__(
        self,
        engine: Engine,
        rounds: Rounds,
        *,
        max_drop: float,
        most: int,
        batch: int,
        limit: int,
        kept: Sequence[Round],
        keep: Callable[[Round], None],
        advance: Advance = quiet,
    ) -> None:
        """`most`: questions a candidate may take in each set. `kept`: rounds answered before; `keep` gets new ones."""
        self.engine, self.rounds, self.max_drop, self.most = engine, rounds, max_drop, most
        self.batch, self.limit, self.keep, self.advance = batch, limit, keep, advance
        self.known = {(each.policy, each.unseen, each.round): each for each in kept}
        # Of candidates that came to the unseen questions, in this run or before: which one each was.
        self.turns: dict[str, int] = {each.policy: each.turn for each in kept if each.turn}

    def run(self, candidates: list[Candidate]) -> Iterator[CandidateTrials]:
        found: dict[int, CandidateTrials] = {}  # by place
        yield from self.halve(candidates, found, 0, len(candidates), lambda tried: tried.may_hold)
        if self.could_hold():  # between the boldest that holds and the mildest before it that does not
            best = min((place for place, tried in found.items() if tried.state == "holds"), default=len(candidates))
            bolder = [place for place in found if place < best]
            yield from self.halve(
                candidates, found, 1 + max(bolder, default=-1), best, lambda tried: tried.state == "holds"
            )

    def halve(
        self,
        candidates: list[Candidate],
        found: dict[int, CandidateTrials],
        low: int,
        high: int,
        will_do: Callable[[CandidateTrials], bool],
    ) -> Iterator[CandidateTrials]:
        """None before `low` will do, and from `high` on nothing bolder is found."""
        while low < high:
            middle = (low + high) // 2
            if middle not in found:
                found[middle] = self.trial(candidates[middle])
                yield found[middle]
            low, high = (low, middle) if will_do(found[middle]) else (middle + 1, high)

    def trial(self, candidate: Candidate) -> CandidateTrials:
        tried = CandidateTrials(candidate, Trial(False), Trial(True), self.max_drop)
        if self.judge(candidate, tried.search) == "holds":
            tried.unseen.turn = self.turns.setdefault(candidate.name, 1 + max(self.turns.values(), default=0))
            self.judge(candidate, tried.unseen)
        return tried

    @cached_property
    def best_case(self) -> Trial:
        """As many questions as may be asked, and none of them lost."""
        best = Trial(False)
        while tasks := self.next_round(best):
            best.right += [True] * len(tasks)
            best.looks += 1
        best.native = best.right
        return best

    def could_hold(self) -> bool:
        return self.best_case.state(self.max_drop) == "holds"

    def next_round(self, trial: Trial) -> list[Task]:
        """Whole rounds only, so that they stay what they are if more may be asked another time."""
        tasks = self.rounds(trial.unseen, trial.looks)
        return tasks if not trial.right or len(trial.right) + len(tasks) <= self.most else []

    def judge(self, candidate: Candidate, trial: Trial) -> State:
        """Rounds of questions until the bounds say something, or they are used up."""
        while trial.state(self.max_drop) == "undecided" and (tasks := self.next_round(trial)):
            trial.native += self.native(tasks, trial)
            found = self.answers(candidate, tasks, trial)
            trial.right += found.right
            trial.loads.append((found.steps, found.rows, found.mean))
            trial.looks += 1
        return trial.state(self.max_drop)

    def check_tasks(self) -> None:
        """Refuse questions that show no harm before anything else is measured."""
        first = Trial(False)
        self.native(self.rounds(first.unseen, first.looks), first)

    def native(self, tasks: list[Task], trial: Trial) -> list[bool]:
        """Which of a round's questions native routing answers."""
        right = self.answers(None, tasks, trial).right
        all_ = trial.native + right
        if sum(all_) < 0.1 * len(all_):
            raise TaskError(
                f"native routing answers {sum(all_)} of {len(all_)} questions: harm could not be seen in these tasks, "
                f"expected at least a tenth to be right"
            )
        return right

    def answers(self, candidate: Candidate | None, tasks: list[Task], trial: Trial) -> Round:
        """Of one round, decoded or as they were kept."""
        name = "native" if candidate is None else candidate.name
        key = (name, trial.unseen, trial.looks)
        if key in self.known:
            self.advance(len(tasks))
            return self.known[key]
        policy = None if candidate is None else candidate.policy
        found = answer(self.engine, policy, tasks, batch=self.batch, limit=self.limit, advance=self.advance)
        turn = trial.turn if trial.unseen and candidate is not None else None
        run = found.run
        cut = sum(len(tokens) >= self.limit for tokens in found.tokens)
        self.known[key] = Round(*key, turn, found.right, run.steps, run.rows, found.stats.mean, cut)
        self.keep(self.known[key])
        return self.known[key]
