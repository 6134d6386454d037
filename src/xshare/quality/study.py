"""All policies on the same questions in the same order; whatever is measured is kept at once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import exp

from xshare.engines.base import Engine
from xshare.engines.client import ServerError
from xshare.policy import Policy
from xshare.progress import Advance, quiet
from xshare.quality.files import Task
from xshare.quality.measure import Outcome, answer, prompts_of, row_of, tokens_of, unsettled
from xshare.results import Results, Row

FORCED = ("kl", "perplexity", "same_token")


class Study:
    def __init__(
        self,
        engine: Engine,
        tasks: list[Task],
        mixed: bool,
        batch: int,
        limit: int,
        neighbours: bool,
        results: Results,
    ) -> None:
        """`results` may have samples of an earlier run, and gets the new ones."""
        self.engine, self.tasks, self.mixed, self.batch, self.limit = engine, tasks, mixed, batch, limit
        self.neighbours, self.results, self.samples = neighbours, results, results.samples
        self.kinds = list(dict.fromkeys(task.kind for task in tasks))
        most = max(sum(task.kind == kind for task in tasks) for kind in self.kinds)
        self.alone = not mixed and most <= batch  # every kind is one batch: nobody has other neighbours

    def answers(self, policies: int) -> int:
        """How many `run` tells `advance` of."""
        return len(self.tasks) * policies * (1 + self.neighbours + self.engine.forces)

    def run(self, policies: list[Policy | None], native: Row | None, advance: Advance = quiet) -> Iterator[Row]:
        """A row a policy. The first is native, unless the engine cannot be that: then `native` is a sample of another,
        if there is one."""
        base = None if native is None else Outcome.of(None, native)
        drafts = self.engine.about.drafts or 0
        for policy in policies:
            found = self.outcome(policy, 0, advance)
            base = found if policy is None else base
            row = row_of(found, base, drafts) | {"mixed": self.mixed, "batch": self.batch, "drafts": drafts}
            row["cut"] = sum(len(tokens) >= self.limit for tokens in found.tokens) / len(found.tokens)
            row["unsettled"] = None
            if not self.alone and (self.neighbours or self.kept_of(policy, 1, self.samples)):
                row["unsettled"] = unsettled(found, self.outcome(policy, 1, advance if self.neighbours else quiet))
            row |= dict.fromkeys(FORCED) if base is None else self.divergence(policy, base, advance)
            for kind in self.kinds:
                right = [r for r, task in zip(found.right, self.tasks, strict=True) if task.kind == kind]
                row[f"accuracy {kind}"] = sum(right) / len(right)
            yield row

    def outcome(self, policy: Policy | None, order: int, advance: Advance) -> Outcome:
        """Decoded, or as it was kept. `order` 0 is the tasks' own, any other shuffles them."""
        sample = self.kept_of(policy, order, self.samples)
        if sample is not None:
            advance(len(self.tasks))
            return Outcome.of(policy, sample)
        begun = self.kept_of(policy, f"begun {order}", self.samples)
        ended: Row = {} if begun is None else begun["ended"]  # by place: whether it is right, and its tokens
        places = list(range(len(self.tasks)))
        if order:
            random.Random(order).shuffle(places)
        missing = [place for place in places if str(place) not in ended]
        advance(len(places) - len(missing))
        asked = [self.tasks[place] for place in missing]
        try:
            found = answer(
                self.engine, policy, asked, batch=self.batch, limit=self.limit, alike=not self.mixed, advance=advance
            )
        except ServerError as error:
            for place, task, each in zip(missing, asked, error.answers, strict=False):
                if each is not None:
                    ended[str(place)] = [task.is_right(each.text), tokens_of(each)]
            if begun is None and ended:
                self.keep(self.key(policy, f"begun {order}") | {"ended": ended})
            self.results.write()
            raise
        ended |= {str(place): pair for place, *pair in zip(missing, found.right, found.tokens, strict=True)}
        found.right, found.tokens = ([ended[str(place)][i] for place in range(len(places))] for i in (0, 1))
        if begun is not None:
            self.samples.remove(begun)
        self.keep(self.key(policy, order) | found.kept())
        return found

    def divergence(self, policy: Policy | None, native: Outcome, advance: Advance) -> Row:
        """Of native's own answers, teacher-forced; nothing where the engine cannot."""
        sample = self.kept_of(policy, "forced", self.samples)
        if sample is not None:
            advance(len(self.tasks))
            return {name: sample[name] for name in FORCED}
        found: Row = dict.fromkeys(FORCED)
        if not self.engine.forces:
            return found
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
        if tokens := sum(part.tokens for part in parts):
            found["kl"] = sum(part.kl for part in parts) / tokens
            found["perplexity"] = exp(sum(part.surprise for part in parts) / tokens)
            found["same_token"] = sum(part.same for part in parts) / tokens
        self.keep(self.key(policy, "forced") | found)
        return found

    def key(self, policy: Policy | None, order: int | str) -> Row:
        """What a sample is known by."""
        return {"policy": "native" if policy is None else str(policy), "mixed": self.mixed, "order": order}

    def kept_of(self, policy: Policy | None, order: int | str, samples: list[Row]) -> Row | None:
        key = self.key(policy, order)
        return next((each for each in samples if {field: each[field] for field in key} == key), None)

    def keep(self, sample: Row) -> None:
        self.samples.append(sample)
        self.results.write()
