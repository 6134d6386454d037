"""All policies on the same questions in the same order; whatever is measured is kept at once."""

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
        asked: QuestionSet,
        mixed: bool,
        batch: int,
        neighbours: bool,
        results: Results,
    ) -> None:
        """`results` may have samples of an earlier run, and gets the new ones."""
        self.engine, self.asked, self.mixed, self.batch, self.limit = engine, asked, mixed, batch, asked.tokens
        self.neighbours, self.results, self.samples = neighbours, results, Samples(results.samples, mixed, asked.name)
        self.tasks = tasks = asked.tasks
        self.kinds = list(dict.fromkeys(task.kind for task in tasks))
        most = max(sum(task.kind == kind for task in tasks) for kind in self.kinds)
        self.alone = not mixed and most <= batch  # every kind is one batch: nobody has other neighbours

    def answers(self, policies: int) -> int:
        """How many `run` tells `advance` of."""
        return len(self.tasks) * policies * (1 + self.neighbours + self.engine.forces)

    def run(self, policies: list[Policy | None], native: Outcome | None, advance: Advance = quiet) -> Iterator[Row]:
        """A row a policy. The first is native, unless the engine cannot be that: then `native` is another's, if there
        is one."""
        base = native
        drafts = self.engine.about.drafts or 0
        for policy in policies:
            found = self.outcome(policy, 0, advance)
            base = found if policy is None else base
            row = row_of(found, base, drafts) | {"mixed": self.mixed, "batch": self.batch, "drafts": drafts}
            row["cut"] = sum(len(tokens) >= self.limit for tokens in found.tokens) / len(found.tokens)
            if self.asked.name is not None:
                row |= {"task": self.asked.name, "metric": self.asked.metric}
            row["unsettled"] = None
            if not self.alone and (self.neighbours or self.samples.answers(policy, 1)):
                row["unsettled"] = unsettled_share(
                    found, self.outcome(policy, 1, advance if self.neighbours else quiet)
                )
            row |= asdict(ForcedDivergence() if base is None else self.divergence(policy, base, advance))
            for kind in self.kinds:
                right = [r for r, task in zip(found.right, self.tasks, strict=True) if task.kind == kind]
                row[f"accuracy {kind}"] = sum(right) / len(right)
            yield row

    def outcome(self, policy: Policy | None, order: int, advance: Advance) -> Outcome:
        """Decoded, or as it was kept. `order` 0 is the tasks' own, any other shuffles them."""
        kept = self.samples.answers(policy, order)
        if kept is not None:
            advance(len(self.tasks))
            return kept
        ended = self.samples.ended(policy, order)
        places = list(range(len(self.tasks)))
        if order:
            random.Random(order).shuffle(places)
        missing = [place for place in places if place not in ended]
        advance(len(places) - len(missing))
        asked = [self.tasks[place] for place in missing]
        try:
            found = answer(
                self.engine,
                policy,
                asked,
                batch=self.batch,
                limit=self.limit,
                alike=not self.mixed,
                advance=advance,
                stop=self.asked.stop,
            )
        except BaseException as error:  # a server that stops, or a user who has had enough
            for place, task, each in zip(missing, asked, left(error), strict=False):
                if each is not None:
                    ended[place] = task.is_right(each.text), tokens_of(each)
            if ended:
                self.samples.add_ended(policy, order, ended)
                self.results.write()
            raise
        ended |= dict(zip(missing, zip(found.right, found.tokens, strict=True), strict=True))
        found.right = [ended[place][0] for place in range(len(places))]
        found.tokens = [ended[place][1] for place in range(len(places))]
        self.samples.add_answers(policy, order, found)
        self.results.write()
        return found

    def divergence(self, policy: Policy | None, native: Outcome, advance: Advance) -> ForcedDivergence:
        """Of native's own answers, teacher-forced; nothing where the engine cannot."""
        kept = self.samples.forced(policy)
        if kept is not None:
            advance(len(self.tasks))
            return kept
        if not self.engine.forces:
            return ForcedDivergence()
        self.engine.use(policy)
        groups = [list(range(len(self.tasks)))]
        if not self.mixed:  # as they were decoded: no batch of two kinds
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
        found = ForcedDivergence()
        if tokens := sum(part.tokens for part in parts):
            kl, surprise, same = (sum(getattr(part, name) for part in parts) for name in ("kl", "surprise", "same"))
            found = ForcedDivergence(kl / tokens, exp(surprise / tokens), same / tokens)
        self.samples.add_forced(policy, found)
        self.results.write()
        return found
