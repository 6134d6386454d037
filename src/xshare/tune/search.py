"""From cheap signals to a decision: the boldest policy whose loss stays within what is allowed.

Candidates are sorted from the boldest to the mildest, and harm is assumed to fall along them. The search bisects: after
a candidate that holds or may hold it tries a bolder one, otherwise a milder one. Candidates answer questions in rounds,
paired with native routing. A candidate that holds on the search questions is tried again on unseen questions; only
those count. If there are enough questions, the candidates between the boldest one that holds and the bolder ones that
fail are tried as well.

The second round is as large as the first, and every later one as large as all before it: large rounds fill the batches.
The bounds hold however often one looks at them.
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

CHANCE = 0.05  # probability that any policy is wrongly said to hold
State = Literal["holds", "fails", "undecided"]
Rounds = Callable[[bool, int], list[Task]]  # (unseen, round) -> its questions; empty when there are no more


def round_span(number: int) -> tuple[int, int]:
    """Start and length of a round, in units of the first round."""
    return (0, 1) if number == 0 else (1 << number - 1, 1 << number - 1)


@dataclass(frozen=True)
class Round:
    """The answers of one policy to one round of questions, as a result file stores them."""

    policy: str
    unseen: bool
    round: int
    turn: int | None  # of a candidate on unseen questions: see Trial
    right: list[bool]
    steps: int
    rows: int
    mean: dict[str, float]  # mean figures per step, such as experts_active
    cut: int = 0  # answers cut off at the token limit; 0 in older files, which did not count them


@dataclass
class Trial:
    """One candidate on one set of questions."""

    unseen: bool
    turn: int = 1  # this candidate is the turn-th that is tried on this set
    looks: int = 0
    native: list[bool] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    loads: list[tuple[int, int, dict[str, float]]] = field(
        default_factory=list
    )  # steps, rows and mean figures per round

    @property
    def change(self) -> Paired:
        return paired(self.native, self.right)

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of the change in accuracy, which decide."""
        change = self.change
        return change_bounds(change.lost, change.won, len(self.right), self.alpha)

    def mean(self, figure: str) -> float | None:
        """Mean of a figure over the decode steps of these questions; None if the engine counted none."""
        known = [(steps, means[figure]) for steps, _, means in self.loads if figure in means and steps]
        return sum(n * value for n, value in known) / sum(n for n, _ in known) if known else None

    @property
    def tokens_a_step(self) -> float | None:
        steps = sum(steps for steps, _, _ in self.loads)
        return sum(rows for _, rows, _ in self.loads) / steps if steps else None

    @property
    def alpha(self) -> float:
        """The probability of being wrong about this candidate. It falls with every turn, so that all candidates
        together stay below CHANCE."""
        return CHANCE / (self.turn * (self.turn + 1))

    def state(self, max_drop: float) -> State:
        if not self.right:
            return "undecided"
        low, high = self.bounds
        return "holds" if low >= -max_drop else "fails" if high < -max_drop else "undecided"

    def needed(self, max_drop: float) -> int | None:
        """About how many questions would let it hold if its rates stay; None if no number would."""
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
        """A policy holds only if it holds on both sets; it fails if it fails on one."""
        states = {trial.state(self.max_drop) for trial in (self.search, self.unseen)}
        return "fails" if "fails" in states else "holds" if states == {"holds"} else "undecided"

    @property
    def may_hold(self) -> bool:
        """It holds, or is undecided and has lost no more than allowed so far."""
        if self.state == "undecided" and self.search.right:
            return min(trial.change.change for trial in (self.search, self.unseen) if trial.right) >= -self.max_drop
        return self.state == "holds"

    @property
    def last(self) -> Trial:
        """The trial on the set that was used last."""
        return self.unseen if self.unseen.right else self.search

    @property
    def needed(self) -> int | None:
        """About how many questions of each set would let it hold; None if no number would."""
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
        known: Sequence[Round],
        keep: Callable[[Round], None],
        advance: Advance = quiet,
    ) -> None:
        """`most`: questions per candidate and set. `known`: rounds of an earlier run; `keep` receives new ones."""
        self.engine, self.rounds, self.max_drop, self.most = engine, rounds, max_drop, most
        self.batch, self.limit, self.keep, self.advance = batch, limit, keep, advance
        self.known = {(answered.policy, answered.unseen, answered.round): answered for answered in known}
        # The turn of every candidate that reached the unseen questions, in this run or an earlier one.
        self.turns: dict[str, int] = {answered.policy: answered.turn for answered in known if answered.turn}

    def run(self, candidates: list[Candidate]) -> Iterator[CandidateTrials]:
        tried: dict[int, CandidateTrials] = {}  # by index
        yield from self.halve(candidates, tried, 0, len(candidates), lambda trials: trials.may_hold)
        if self.could_hold():  # between the boldest that holds and the nearest bolder one that does not
            best = min((index for index, trials in tried.items() if trials.state == "holds"), default=len(candidates))
            bolder = [index for index in tried if index < best]
            yield from self.halve(
                candidates, tried, 1 + max(bolder, default=-1), best, lambda trials: trials.state == "holds"
            )

    def halve(
        self,
        candidates: list[Candidate],
        tried: dict[int, CandidateTrials],
        low: int,
        high: int,
        will_do: Callable[[CandidateTrials], bool],
    ) -> Iterator[CandidateTrials]:
        """Bisect candidates from `low` to `high` for the boldest one that will do; `tried` collects them by index."""
        while low < high:
            middle = (low + high) // 2
            if middle not in tried:
                tried[middle] = self.trial(candidates[middle])
                yield tried[middle]
            low, high = (low, middle) if will_do(tried[middle]) else (middle + 1, high)

    def trial(self, candidate: Candidate) -> CandidateTrials:
        trials = CandidateTrials(candidate, Trial(False), Trial(True), self.max_drop)
        if self.judge(candidate, trials.search) == "holds":
            trials.unseen.turn = self.turns.setdefault(candidate.name, 1 + max(self.turns.values(), default=0))
            self.judge(candidate, trials.unseen)
        return trials

    @cached_property
    def best_case(self) -> Trial:
        """A trial on as many questions as allowed, with none lost."""
        best = Trial(False)
        while tasks := self.next_round(best):
            best.right += [True] * len(tasks)
            best.looks += 1
        best.native = best.right
        return best

    def could_hold(self) -> bool:
        return self.best_case.state(self.max_drop) == "holds"

    def next_round(self, trial: Trial) -> list[Task]:
        """The next round; none if it would exceed `most`. Rounds stay whole, so that a later run with more questions
        can continue them."""
        tasks = self.rounds(trial.unseen, trial.looks)
        return tasks if not trial.right or len(trial.right) + len(tasks) <= self.most else []

    def judge(self, candidate: Candidate, trial: Trial) -> State:
        """Ask rounds of questions until the bounds decide or no questions are left."""
        while trial.state(self.max_drop) == "undecided" and (tasks := self.next_round(trial)):
            trial.native += self.native(tasks, trial)
            answers = self.answers(candidate, tasks, trial)
            trial.right += answers.right
            trial.loads.append((answers.steps, answers.rows, answers.mean))
            trial.looks += 1
        return trial.state(self.max_drop)

    def check_tasks(self) -> None:
        """Refuse questions that could not show harm, before anything else is measured."""
        first = Trial(False)
        self.native(self.rounds(first.unseen, first.looks), first)

    def native(self, tasks: list[Task], trial: Trial) -> list[bool]:
        """Which questions of a round native routing answers right."""
        right = self.answers(None, tasks, trial).right
        judged = trial.native + right
        if sum(judged) < 0.1 * len(judged):
            raise TaskError(
                f"native routing answers {sum(judged)} of {len(judged)} questions: harm could not be seen in these "
                f"tasks, expected at least a tenth to be right"
            )
        return right

    def answers(self, candidate: Candidate | None, tasks: list[Task], trial: Trial) -> Round:
        """The answers to one round, decoded now or stored before."""
        name = "native" if candidate is None else candidate.name
        key = (name, trial.unseen, trial.looks)
        if key in self.known:
            self.advance(len(tasks))
            return self.known[key]
        policy = None if candidate is None else candidate.policy
        outcome = answer(self.engine, policy, tasks, batch=self.batch, limit=self.limit, advance=self.advance)
        turn = trial.turn if trial.unseen and candidate is not None else None
        run = outcome.run
        cut = sum(len(tokens) >= self.limit for tokens in outcome.tokens)
        self.known[key] = Round(*key, turn, outcome.right, run.steps, run.rows, outcome.stats.mean, cut)
        self.keep(self.known[key])
        return self.known[key]
