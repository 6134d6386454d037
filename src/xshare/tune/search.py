"""From cheap signals to a decision: the boldest policy whose loss, judged by its interval, stays within the allowed.

Candidates stand from the boldest to the mildest, and harm is taken to fall along them: they are tried from the middle
on, bolder ones after one that holds or may, milder ones after any other. They answer questions in rounds, paired with
native routing. One that holds on the questions it was found with is tried again on questions that nobody has looked
at: only that counts. Should none hold so far, milder ones are tried until one does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from xshare.engines.base import Engine
from xshare.quality.files import Task, TaskError
from xshare.quality.measure import answer
from xshare.quality.paired import Paired, bounds, needed, paired
from xshare.results import Row
from xshare.tune.scan import Candidate

CHANCE = 0.05  # of being wrong, over all looks at all policies together
State = Literal["holds", "fails", "undecided"]
Rounds = Callable[[bool, int], list[Task]]  # (unseen, round) -> its questions; none when they are used up
Keep = Callable[[Row], None]


@dataclass
class Trial:
    """One candidate on one set of questions."""

    unseen: bool
    turn: int = 1  # how many candidates have been tried on this set, with this one
    looks: int = 0
    native: list[bool] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)

    @property
    def change(self) -> Paired:
        return paired(self.native, self.right)

    def alpha(self, looks: int) -> float:
        """The chance that this look may take: less with every look and every candidate, so that all of them together
        stay below CHANCE, however long one goes on."""
        return CHANCE / (looks * (looks + 1) * self.turn * (self.turn + 1))

    def state(self, max_drop: float) -> State:
        if not self.right:
            return "undecided"
        low, high = bounds(self.change.lost, self.change.won, len(self.right), self.alpha(self.looks))
        return "holds" if low >= -max_drop else "fails" if high < -max_drop else "undecided"

    def missing(self, max_drop: float) -> int | None:
        """About how many more questions would let it hold; None where none would."""
        asked, change = len(self.right), self.change
        each = asked / self.looks
        total = needed(change.lost, change.won, asked, max_drop, lambda n: self.alpha(max(1, round(n / each))))
        return None if total is None else max(1, total - asked)


@dataclass
class Tried:
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
    def missing(self) -> int | None:
        """About how many more questions would decide, in both sets together; None where none would."""
        if self.unseen.right:
            return self.unseen.missing(self.max_drop)
        more = self.search.missing(self.max_drop) if self.search.right else None
        return None if more is None else more + len(self.search.right) + more


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
        kept: list[Row],
        keep: Keep,
        advance: Callable[[int], None] = lambda done: None,
    ) -> None:
        """`most`: questions a candidate may take in each set. `kept`: rounds answered before; `keep` gets new ones."""
        self.engine, self.rounds, self.max_drop, self.most = engine, rounds, max_drop, most
        self.batch, self.limit, self.keep, self.advance = batch, limit, keep, advance
        self.turn = 0  # candidates that came to the unseen questions
        self.known: dict[tuple[str, bool, int], list[bool]] = {
            (row["policy"], row["unseen"], row["round"]): row["right"] for row in kept
        }

    def run(self, candidates: list[Candidate]) -> Iterator[Tried]:
        found: dict[int, Tried] = {}  # by place
        yield from self.halve(candidates, found, 0, lambda tried: tried.may_hold)
        if self.could_hold() and not any(tried.state == "holds" for tried in found.values()):
            undecided = [place for place, tried in found.items() if tried.state == "undecided"]
            milder = 1 + max(undecided, default=len(candidates))
            yield from self.halve(candidates, found, milder, lambda tried: tried.state == "holds")

    def halve(
        self, candidates: list[Candidate], found: dict[int, Tried], low: int, will_do: Callable[[Tried], bool]
    ) -> Iterator[Tried]:
        """None before `low` will do, and from `high` on nothing bolder is found."""
        high = len(candidates)
        while low < high:
            middle = (low + high) // 2
            if middle not in found:
                found[middle] = self.trial(candidates[middle])
                yield found[middle]
            low, high = (low, middle) if will_do(found[middle]) else (middle + 1, high)

    def trial(self, candidate: Candidate) -> Tried:
        tried = Tried(candidate, Trial(False), Trial(True, self.turn + 1), self.max_drop)
        if self.judge(candidate, tried.search) == "holds":
            self.turn += 1
            self.judge(candidate, tried.unseen)
        return tried

    def could_hold(self) -> bool:
        """Whether so many questions could decide at all, if none of them were lost."""
        each = len(self.rounds(False, 0))
        best = Trial(False, looks=-(-self.most // each), native=[True] * self.most, right=[True] * self.most)
        return best.state(self.max_drop) == "holds"

    def judge(self, candidate: Candidate, trial: Trial) -> State:
        """Rounds of questions until the interval says something, or they are used up."""
        number = 0
        while trial.state(self.max_drop) == "undecided" and len(trial.right) < self.most:
            tasks = self.rounds(trial.unseen, number)
            if not tasks:
                break
            trial.native += self.answers(None, tasks, trial.unseen, number)
            if sum(trial.native) < 0.1 * len(trial.native):
                raise TaskError(
                    f"native routing answers {sum(trial.native)} of {len(trial.native)} questions: harm could not be "
                    f"seen in these tasks, expected at least a tenth to be right"
                )
            trial.right += self.answers(candidate, tasks, trial.unseen, number)
            number += 1
            trial.looks = number
        return trial.state(self.max_drop)

    def answers(self, candidate: Candidate | None, tasks: list[Task], unseen: bool, number: int) -> list[bool]:
        name = "native" if candidate is None else candidate.name
        key = (name, unseen, number)
        if key not in self.known:
            policy = None if candidate is None else candidate.policy
            budgets = None if candidate is None else candidate.budgets
            found = answer(
                self.engine, policy, tasks, budgets=budgets, batch=self.batch, limit=self.limit, advance=self.advance
            )
            self.known[key] = found.right
            self.keep({"policy": name, "unseen": unseen, "round": number, "right": found.right})
        else:
            self.advance(len(tasks))
        return self.known[key]
