"""All policies on the same questions in the same order. Every measurement is written to the result file at once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict
from math import exp

from xshare.engines.base import Engine, left
from xshare.policy import Policy
from xshare.progress import Advance, quiet
from xshare.quality.answering import Outcome, answer, prompts_of, row_of, tokens_of, unsettled_share
from xshare.quality.stored_answers import ForcedDivergence, Samples
from xshare.quality.task_files import QuestionSet
from xshare.results import Results, Row


class Study:
    def __init__(
        self,
        engine: Engine,
        questions: QuestionSet,
        mixed: bool,
        batch: int,
        neighbours: bool,
        results: Results,
    ) -> None:
        """`neighbours`: decode also in another order. `results` may hold samples of an earlier run."""
        self.engine, self.questions, self.mixed, self.batch = engine, questions, mixed, batch
        self.limit, self.neighbours, self.results = questions.tokens, neighbours, results
        self.samples = Samples(results.samples, mixed, questions.name)
        self.tasks = tasks = questions.tasks
        self.kinds = list(dict.fromkeys(task.kind for task in tasks))
        largest_kind = max(sum(task.kind == kind for task in tasks) for kind in self.kinds)
        self.alone = not mixed and largest_kind <= batch  # one batch per kind: neighbours stay in any order

    def answers(self, policies: int) -> int:
        """How many answers `run` reports to `advance`."""
        return len(self.tasks) * policies * (1 + self.neighbours + self.engine.forces)

    def run(self, policies: list[Policy | None], native: Outcome | None, advance: Advance = quiet) -> Iterator[Row]:
        """One row per policy. The first policy is native (None), unless the engine cannot run natively: then `native`
        holds the answers of another engine, if there are any."""
        base = native
        drafts = self.engine.about.drafts or 0
        for policy in policies:
            outcome = self.outcome(policy, 0, advance)
            base = outcome if policy is None else base
            row = row_of(outcome, base, drafts) | {"mixed": self.mixed, "batch": self.batch, "drafts": drafts}
            row["cut"] = sum(len(tokens) >= self.limit for tokens in outcome.tokens) / len(outcome.tokens)
            if self.questions.name is not None:
                row |= {"task": self.questions.name, "metric": self.questions.metric}
            row["unsettled"] = None
            if not self.alone and (self.neighbours or self.samples.answers(policy, 1)):
                row["unsettled"] = unsettled_share(
                    outcome, self.outcome(policy, 1, advance if self.neighbours else quiet)
                )
            row |= asdict(ForcedDivergence() if base is None else self.divergence(policy, base, advance))
            for kind in self.kinds:
                right = [r for r, task in zip(outcome.right, self.tasks, strict=True) if task.kind == kind]
                row[f"accuracy {kind}"] = sum(right) / len(right)
            yield row

    def outcome(self, policy: Policy | None, order: int, advance: Advance) -> Outcome:
        """The answers of one policy, decoded now or stored before. `order` 0 keeps the order of the tasks, any other
        shuffles them."""
        stored = self.samples.answers(policy, order)
        if stored is not None:
            advance(len(self.tasks))
            return stored
        finished = self.samples.ended(policy, order)
        positions = list(range(len(self.tasks)))
        if order:
            random.Random(order).shuffle(positions)
        missing = [position for position in positions if position not in finished]
        advance(len(positions) - len(missing))
        tasks = [self.tasks[position] for position in missing]
        try:
            outcome = answer(
                self.engine,
                policy,
                tasks,
                batch=self.batch,
                limit=self.limit,
                alike=not self.mixed,
                advance=advance,
                stop=self.questions.stop,
            )
        except BaseException as error:  # the server stopped, or the user interrupted: keep the finished answers
            for position, task, partial_answer in zip(missing, tasks, left(error), strict=False):
                if partial_answer is not None:
                    finished[position] = task.is_right(partial_answer.text), tokens_of(partial_answer)
            if finished:
                self.samples.add_ended(policy, order, finished)
                self.results.write()
            raise
        finished |= dict(zip(missing, zip(outcome.right, outcome.tokens, strict=True), strict=True))
        outcome.right = [finished[position][0] for position in range(len(positions))]
        outcome.tokens = [finished[position][1] for position in range(len(positions))]
        self.samples.add_answers(policy, order, outcome)
        self.results.write()
        return outcome

    def divergence(self, policy: Policy | None, native: Outcome, advance: Advance) -> ForcedDivergence:
        """How far the policy diverges on native's answers, teacher-forced; empty if the engine cannot force tokens."""
        stored = self.samples.forced(policy)
        if stored is not None:
            advance(len(self.tasks))
            return stored
        if not self.engine.forces:
            return ForcedDivergence()
        self.engine.use(policy)
        groups = [list(range(len(self.tasks)))]
        if not self.mixed:  # as in decoding: one kind per batch
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
        divergence = ForcedDivergence()
        if tokens := sum(part.tokens for part in parts):
            kl, surprise, same = (sum(getattr(part, name) for part in parts) for name in ("kl", "surprise", "same"))
            divergence = ForcedDivergence(kl / tokens, exp(surprise / tokens), same / tokens)
        self.samples.add_forced(policy, divergence)
        self.results.write()
        return divergence
