"""Do protected answers move? The same batches natively, and under policies with some of their requests protected.

A batch begins together and nobody joins it, so that every request has the same mates in all runs. Two controls run with
XShare off: the same questions with other mates, and in batches half as large. What they change is the engine's own
arithmetic, which a protected request has like any other.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from xshare.engines.base import Engine, Run
from xshare.policy import Policy
from xshare.progress import Advance, quiet
from xshare.protected_share import spread
from xshare.quality.answering import Outcome, prompts_of, row_of, tokens_of
from xshare.quality.stored_answers import Samples
from xshare.quality.task_files import QuestionSet
from xshare.results import Results, Row

MATES, HALF = "other mates", "half the batch"


def batches_of(places: Sequence[int], batch: int) -> list[Sequence[int]]:
    return [places[start : start + batch] for start in range(0, len(places), batch)]


class ProtectedStudy:
    def __init__(
        self, engine: Engine, asked: QuestionSet, mixed: bool, batch: int, share: float, results: Results
    ) -> None:
        """`share` of the requests of every batch is protected. `results` may have samples of an earlier run, and gets
        the new ones."""
        self.engine, self.asked, self.tasks, self.mixed, self.batch = engine, asked, asked.tasks, mixed, batch
        self.share, self.results, self.samples = share, results, Samples(results.samples, mixed, asked.name)
        self.places = range(len(self.tasks))
        chosen = [spread(share, len(each)) for each in batches_of(self.places, batch)]
        self.protected = frozenset(number * batch + who for number, some in enumerate(chosen) for who in some)

    def answers(self, policies: int) -> int:
        """How many `run` tells `advance` of."""
        return len(self.tasks) * (3 + policies)

    def run(self, policies: Sequence[Policy], advance: Advance = quiet) -> Iterator[Row]:
        """Rows of native routing, of both controls, and of each policy."""
        native = self.outcome(None, "fixed", self.places, self.batch, None, advance)
        yield self.row(native, native, None)
        shuffled = random.Random(1).sample(self.places, len(self.places))
        for control, places, batch in ((MATES, shuffled, self.batch), (HALF, self.places, max(1, self.batch // 2))):
            yield self.row(self.outcome(None, control, places, batch, None, advance), native, control)
        for policy in policies:
            named = f"{self.share:g} protected"
            found = self.outcome(policy, named, self.places, self.batch, self.protected, advance)
            yield self.row(found, native, None)

    def outcome(
        self,
        policy: Policy | None,
        name: str,
        places: Sequence[int],
        batch: int,
        protected: Collection[int] | None,
        advance: Advance,
    ) -> Outcome:
        """Decoded, or as it was kept. `places` of the tasks in their order, in batches of their own; `protected` are
        places too."""
        kept = self.samples.answers(policy, name)
        if kept is not None:
            advance(len(self.tasks))
            return kept
        self.engine.use(policy)
        whole = Run([])
        for some in batches_of(places, batch):
            prompts = prompts_of(self.engine, [self.tasks[place] for place in some])
            exact = None if protected is None else {who for who, place in enumerate(some) if place in protected}
            how: dict[str, Any] = {"stop": self.asked.stop} if self.asked.stop else {}
            how |= {"limit": self.asked.tokens, "batch": batch, "advance": advance, "protected": exact}
            whole += self.engine.run(prompts, **how)
        answers = dict(zip(places, whole.answers, strict=True))
        right = [task.is_right(answers[place].text) for place, task in enumerate(self.tasks)]
        tokens = [tokens_of(answers[place]) for place in self.places]
        found = Outcome(policy, right, tokens, self.engine.stats(), whole)
        self.samples.add_answers(policy, name, found)
        self.results.write()
        return found

    def row(self, found: Outcome, native: Outcome, control: str | None) -> Row:
        """What became of native's answers: of those of protected requests, and of the others as ever."""
        same = [mine == theirs for mine, theirs in zip(found.tokens, native.tokens, strict=True)]
        others = [place for place in self.places if place not in self.protected] or list(self.places)
        drafts = self.engine.about.drafts or 0
        row = row_of(at_places(found, others), at_places(native, others), drafts)
        if self.asked.name is not None:
            row |= {"task": self.asked.name, "metric": self.asked.metric}
        return row | {
            "control": control,
            "mixed": self.mixed,
            "batch": max(1, self.batch // 2) if control == HALF else self.batch,
            "drafts": drafts,
            "protected": self.share,
            "protected_questions": len(self.protected),
            "protected_same": sum(same[place] for place in self.protected),
            "same": sum(same[place] for place in others),
            "cut": sum(len(tokens) >= self.asked.tokens for tokens in found.tokens) / len(found.tokens),
            "mass_shared": found.stats.mean.get("mass_shared"),
        }


def at_places(found: Outcome, places: Sequence[int]) -> Outcome:
    """The answers in some places; what was counted is of all."""
    return replace(found, right=[found.right[p] for p in places], tokens=[found.tokens[p] for p in places])
