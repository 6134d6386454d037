"""Do protected answers change? The same batches natively, and under policies with some of their requests protected.

The requests of a batch start together and none joins later, so that every request has the same batch mates in all runs.
Two controls run with XShare off: the same questions with other batch mates, and in batches half as large. What changes
there comes from the engine's own arithmetic, to which a protected request is exposed like any other.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from xshare.engines.base import Engine, Run
from xshare.policy import Policy
from xshare.progress import Advance, quiet
from xshare.protected_share import protected_requests
from xshare.quality.answering import Outcome, prompts_of, row_of, tokens_of
from xshare.quality.stored_answers import Samples
from xshare.quality.task_files import QuestionSet
from xshare.results import Results, Row

MATES, HALF = "other mates", "half the batch"


def batches_of(places: Sequence[int], batch: int) -> list[Sequence[int]]:
    return [places[start : start + batch] for start in range(0, len(places), batch)]


class ProtectedStudy:
    def __init__(
        self, engine: Engine, questions: QuestionSet, mixed: bool, batch: int, share: float, results: Results
    ) -> None:
        """`share` of the requests of every batch is protected. `results` may hold samples of an earlier run; new ones
        are added."""
        self.engine, self.questions, self.tasks, self.mixed, self.batch = (
            engine,
            questions,
            questions.tasks,
            mixed,
            batch,
        )
        self.share, self.results, self.samples = share, results, Samples(results.samples, mixed, questions.name)
        self.places = range(len(self.tasks))
        chosen = [protected_requests(share, len(batch_places)) for batch_places in batches_of(self.places, batch)]
        self.protected = frozenset(number * batch + index for number, indices in enumerate(chosen) for index in indices)

    def answers(self, policies: int) -> int:
        """How many answers `run` reports to `advance`."""
        return len(self.tasks) * (3 + policies)

    def run(self, policies: Sequence[Policy], advance: Advance = quiet) -> Iterator[Row]:
        """One row for native routing, one for each control, and one per policy."""
        native = self.outcome(None, "fixed", self.places, self.batch, None, advance)
        yield self.row(native, native, None)
        shuffled = random.Random(1).sample(self.places, len(self.places))
        for control, places, batch in ((MATES, shuffled, self.batch), (HALF, self.places, max(1, self.batch // 2))):
            yield self.row(self.outcome(None, control, places, batch, None, advance), native, control)
        for policy in policies:
            name = f"{self.share:g} protected"
            outcome = self.outcome(policy, name, self.places, self.batch, self.protected, advance)
            yield self.row(outcome, native, None)

    def outcome(
        self,
        policy: Policy | None,
        name: str,
        places: Sequence[int],
        batch: int,
        protected: Collection[int] | None,
        advance: Advance,
    ) -> Outcome:
        """The answers of one run, decoded now or stored before under `name`. `places` are indices of tasks in the order
        they run, cut into batches; `protected` are such indices too."""
        stored = self.samples.answers(policy, name)
        if stored is not None:
            advance(len(self.tasks))
            return stored
        self.engine.use(policy)
        whole = Run([])
        for batch_places in batches_of(places, batch):
            prompts = prompts_of(self.engine, [self.tasks[place] for place in batch_places])
            protected_indices = (
                None if protected is None else {index for index, place in enumerate(batch_places) if place in protected}
            )
            run_options: dict[str, Any] = {"stop": self.questions.stop} if self.questions.stop else {}
            run_options |= {
                "limit": self.questions.tokens,
                "batch": batch,
                "advance": advance,
                "protected": protected_indices,
            }
            whole += self.engine.run(prompts, **run_options)
        answers = dict(zip(places, whole.answers, strict=True))
        right = [task.is_right(answers[place].text) for place, task in enumerate(self.tasks)]
        tokens = [tokens_of(answers[place]) for place in self.places]
        outcome = Outcome(policy, right, tokens, self.engine.stats(), whole)
        self.samples.add_answers(policy, name, outcome)
        self.results.write()
        return outcome

    def row(self, outcome: Outcome, native: Outcome, control: str | None) -> Row:
        """The row of one run: accuracy of the unprotected requests, and how many protected answers stayed equal."""
        same = [a == b for a, b in zip(outcome.tokens, native.tokens, strict=True)]
        others = [place for place in self.places if place not in self.protected] or list(self.places)
        drafts = self.engine.about.drafts or 0
        row = row_of(at_places(outcome, others), at_places(native, others), drafts)
        if self.questions.name is not None:
            row |= {"task": self.questions.name, "metric": self.questions.metric}
        return row | {
            "control": control,
            "mixed": self.mixed,
            "batch": max(1, self.batch // 2) if control == HALF else self.batch,
            "drafts": drafts,
            "protected": self.share,
            "protected_questions": len(self.protected),
            "protected_same": sum(same[place] for place in self.protected),
            "same": sum(same[place] for place in others),
            "cut": sum(len(tokens) >= self.questions.tokens for tokens in outcome.tokens) / len(outcome.tokens),
            "mass_shared": outcome.stats.mean.get("mass_shared"),
        }


def at_places(outcome: Outcome, places: Sequence[int]) -> Outcome:
    """Only the answers at `places`; the counters still cover all of them."""
    return replace(
        outcome, right=[outcome.right[place] for place in places], tokens=[outcome.tokens[place] for place in places]
    )
