"""The answers of one policy on one engine, and how they differ from native's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol, TypeVar

from xshare.engines.base import Answer, Engine, Run, leaving, left
from xshare.engines.counters import Stats
from xshare.policy import Policy
from xshare.progress import Advance, quiet
from xshare.quality.paired import paired
from xshare.quality.task_files import Task
from xshare.results import Row
from xshare.statistics import share_interval

AGAINST = ("change", "change_low", "change_high", "p", "lost", "won", "agreement", "diverged", "diverged_at")
BY_LAYER = ("experts_active", "experts_native")


@dataclass
class Outcome:
    policy: Policy | None  # None: native
    right: list[bool]
    tokens: list[list[int]]  # one list per answer
    stats: Stats
    run: Run = field(default_factory=lambda: Run([]))

    @property
    def name(self) -> str:
        return "native" if self.policy is None else str(self.policy)

    @property
    def layered(self) -> list[str]:
        """The figures of BY_LAYER that the engine counted."""
        return [name for name in BY_LAYER if name in self.stats.by_layer]

    def to_sample(self) -> Row:
        """The record a result file stores; `from_sample` reads it."""
        stats = {"mean": self.stats.mean} | {name: self.stats.by_layer[name] for name in self.layered}
        return {"right": self.right, "answers": self.tokens, "stats": stats, "run": self.run.record()}

    @classmethod
    def from_sample(cls, policy: Policy | None, sample: Row) -> Outcome:
        """The reverse of `to_sample`."""
        stats = Stats(mean=sample["stats"].get("mean", {}))
        stats.by_layer = {name: sample["stats"][name] for name in BY_LAYER if name in sample["stats"]}
        return cls(policy, sample["right"], sample["answers"], stats, Run([], **sample["run"]))


class OfAKind(Protocol):
    @property
    def kind(self) -> str: ...


AnyTask = TypeVar("AnyTask", bound=OfAKind)


def ordered(tasks: Sequence[AnyTask], mixed: bool, seed: int = 0) -> list[AnyTask]:
    """`mixed`: shuffled, so that a batch holds several kinds. Otherwise kind by kind."""
    shuffled = sorted(tasks, key=lambda task: task.kind)
    random.Random(seed).shuffle(shuffled)
    return shuffled if mixed else sorted(shuffled, key=lambda task: task.kind)


def answer(
    engine: Engine,
    policy: Policy | None,
    tasks: Sequence[Task],
    *,
    batch: int,
    limit: int,
    alike: bool = False,
    advance: Advance = quiet,
    stop: Sequence[str] = (),
) -> Outcome:
    """Decode all tasks. `alike`: every batch holds one kind. The kinds run one after another, unless the engine decodes
    several batches per forward pass (`lanes`) and can give each batch its own kind."""
    engine.use(policy)
    groups = [list(tasks)]
    run_options: dict[str, Any] = {"stop": stop} if stop else {}
    if alike and getattr(engine, "lanes", 1) > 1:
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(task.kind for task in tasks))}
        run_options["kinds"] = [numbers[task.kind] for task in tasks]
    elif alike:
        kinds = dict.fromkeys(task.kind for task in tasks)
        groups = [[task for task in tasks if task.kind == kind] for kind in kinds]
    order = [task for group in groups for task in group]
    position = {id(task): number for number, task in enumerate(order)}
    whole = Run([])
    for group in groups:

        def partial_answers(error: BaseException, before: Run = whole) -> list[Answer | None]:
            answered = dict(enumerate([*before.answers, *left(error)]))
            return [answered.get(position[id(task)]) for task in tasks]

        with leaving(partial_answers):
            whole += engine.run(prompts_of(engine, group), limit=limit, batch=batch, advance=advance, **run_options)
    answers = [whole.answers[position[id(task)]] for task in tasks]
    right = [task.is_right(result.text) for task, result in zip(tasks, answers, strict=True)]
    return Outcome(policy, right, list(map(tokens_of, answers)), engine.stats(), whole)


def prompts_of(engine: Engine, tasks: Sequence[Task]) -> list[Any]:
    """Token ids, or text for a server that takes only text."""

    def one(task: Task) -> Any:
        if task.messages is not None:
            return engine.encode_chat(task.messages)
        return task.prompt if engine.about.prompt_form == "text" else engine.encode(task.prompt)

    return [one(task) for task in tasks]


def tokens_of(answer: Answer) -> list[int]:
    """Token ids. For a server that sends only text, its characters: they show as well where two answers diverge."""
    return answer.tokens or [ord(character) for character in answer.text]


def agreement(native: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]) -> float:
    """The share of native's tokens that come before the first difference of their answer."""
    positions = [diverged_at(a, b) for a, b in zip(native, tokens, strict=True)]
    same = sum(len(a) if position is None else position for a, position in zip(native, positions, strict=True))
    return same / max(1, sum(map(len, native)))


def diverged_at(native: Sequence[int], tokens: Sequence[int]) -> int | None:
    """Index of the first token that differs; None if the answers are equal."""
    if list(native) == list(tokens):
        return None
    return next(
        (i for i, (a, b) in enumerate(zip(native, tokens, strict=False)) if a != b), min(len(native), len(tokens))
    )


def row_of(outcome: Outcome, native: Outcome | None, drafts: int = 0) -> Row:
    """The result row of one policy; with `native`, its comparison on the same tasks."""
    questions = len(outcome.right)
    low, high = share_interval(sum(outcome.right), questions)
    mean = outcome.stats.mean
    row: Row = {
        "policy": outcome.name,
        "method": "native" if outcome.policy is None else outcome.policy.method,
        "questions": questions,
        "active": mean.get("experts_active"),
        "active_native": mean.get("experts_native"),
        "mass": mean.get("mass_kept"),
        "accuracy": sum(outcome.right) / questions,
        "accuracy_low": low,
        "accuracy_high": high,
        **(dict.fromkeys(AGAINST) if native is None else change_columns(native, outcome)),
        "tokens": sum(map(len, outcome.tokens)) / questions,
        "tokens_per_s": outcome.run.rows / outcome.run.decode_s if outcome.run.decode_s else None,
    }
    if mean:
        row |= {name: [round(value, 3) for value in outcome.stats.by_layer[name]] for name in outcome.layered}
    if outcome.run.drafted and drafts:
        row["accepted"] = 1 + outcome.run.accepted * drafts / outcome.run.drafted  # tokens per request and step
    return row


def change_columns(native: Outcome, outcome: Outcome) -> Row:
    """The AGAINST columns: accuracy change, and where answers diverge from native's."""
    change = paired(native.right, outcome.right)
    positions = [diverged_at(a, b) for a, b in zip(native.tokens, outcome.tokens, strict=True)]
    differing = [position for position in positions if position is not None]
    divergence = (agreement(native.tokens, outcome.tokens), len(differing) / len(positions))
    values = (change.change, change.low, change.high, change.p, change.lost, change.won, *divergence)
    return dict(zip(AGAINST, (*values, median(differing) if differing else None), strict=True))


def unsettled_share(first: Outcome, second: Outcome) -> float:
    """The share of answers that change when other requests share their batch."""
    return sum(a != b for a, b in zip(first.tokens, second.tokens, strict=True)) / len(first.tokens)
