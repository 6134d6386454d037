"""One policy on one engine: the tasks' answers, and beside native routing what became of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

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
    tokens: list[list[int]]  # of each answer
    stats: Stats
    run: Run = field(default_factory=lambda: Run([]))

    @property
    def name(self) -> str:
        return "native" if self.policy is None else str(self.policy)

    @property
    def layered(self) -> list[str]:
        """What was counted by layer, of what is shown so."""
        return [name for name in BY_LAYER if name in self.stats.by_layer]

    def to_sample(self) -> Row:
        """What a result file keeps of it, and `of` reads."""
        stats = {"mean": self.stats.mean} | {name: self.stats.by_layer[name] for name in self.layered}
        return {"right": self.right, "answers": self.tokens, "stats": stats, "run": self.run.record()}

    @classmethod
    def from_sample(cls, policy: Policy | None, sample: Row) -> Outcome:
        """The reverse of `to_sample`."""
        stats = Stats(mean=sample["stats"].get("mean", {}))
        stats.by_layer = {name: sample["stats"][name] for name in BY_LAYER if name in sample["stats"]}
        return cls(policy, sample["right"], sample["answers"], stats, Run([], **sample["run"]))


def ordered(tasks: Sequence[Task], mixed: bool, seed: int = 0) -> list[Task]:
    """Mixed: shuffled, so that neighbours in a batch are of different kinds. Otherwise kind by kind."""
    found = sorted(tasks, key=lambda task: task.kind)
    random.Random(seed).shuffle(found)
    return found if mixed else sorted(found, key=lambda task: task.kind)


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
    """Decode all tasks. `alike`: no batch with two kinds of them. One kind after the other, unless the engine decodes
    several batches in a pass, of which each can have its own."""
    engine.use(policy)
    groups = [list(tasks)]
    how: dict[str, Any] = {"stop": stop} if stop else {}
    if alike and getattr(engine, "lanes", 1) > 1:
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(task.kind for task in tasks))}
        how["kinds"] = [numbers[task.kind] for task in tasks]
    elif alike:
        kinds = dict.fromkeys(task.kind for task in tasks)
        groups = [[task for task in tasks if task.kind == kind] for kind in kinds]
    order = [task for group in groups for task in group]
    place = {id(task): number for number, task in enumerate(order)}
    whole = Run([])
    for group in groups:

        def ended(error: BaseException, before: Run = whole) -> list[Answer | None]:
            found = dict(enumerate([*before.answers, *left(error)]))
            return [found.get(place[id(task)]) for task in tasks]

        with leaving(ended):
            whole += engine.run(prompts_of(engine, group), limit=limit, batch=batch, advance=advance, **how)
    answers = [whole.answers[place[id(task)]] for task in tasks]
    right = [task.is_right(each.text) for task, each in zip(tasks, answers, strict=True)]
    return Outcome(policy, right, [tokens_of(each) for each in answers], engine.stats(), whole)


def prompts_of(engine: Engine, tasks: Sequence[Task]) -> list[Any]:
    """Token ids, or text for a server that takes nothing else."""

    def one(task: Task) -> Any:
        if task.messages is not None:
            return engine.encode_chat(task.messages)
        return task.prompt if engine.about.prompt_form == "text" else engine.encode(task.prompt)

    return [one(task) for task in tasks]


def tokens_of(answer: Answer) -> list[int]:
    """Of a server that sends text alone, its characters: where two answers part is seen in them as well."""
    return answer.tokens or [ord(character) for character in answer.text]


def agreement(native: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]) -> float:
    """The share of native's tokens that are decoded before the first that differs."""
    places = [diverged_at(a, b) for a, b in zip(native, tokens, strict=True)]
    same = sum(len(a) if place is None else place for a, place in zip(native, places, strict=True))
    return same / max(1, sum(map(len, native)))


def diverged_at(native: Sequence[int], tokens: Sequence[int]) -> int | None:
    """The place of the first token that differs, None where all are equal."""
    if list(native) == list(tokens):
        return None
    return next(
        (i for i, (a, b) in enumerate(zip(native, tokens, strict=False)) if a != b), min(len(native), len(tokens))
    )


def row_of(found: Outcome, native: Outcome | None, drafts: int = 0) -> Row:
    """The flat record of one policy, and held against native on the same tasks where that is known."""
    asked = len(found.right)
    low, high = share_interval(sum(found.right), asked)
    mean = found.stats.mean
    row: Row = {
        "policy": found.name,
        "method": "native" if found.policy is None else found.policy.method,
        "questions": asked,
        "active": mean.get("experts_active"),
        "active_native": mean.get("experts_native"),
        "mass": mean.get("mass_kept"),
        "accuracy": sum(found.right) / asked,
        "accuracy_low": low,
        "accuracy_high": high,
        **(dict.fromkeys(AGAINST) if native is None else change_columns(native, found)),
        "tokens": sum(map(len, found.tokens)) / asked,
        "tokens_per_s": found.run.rows / found.run.decode_s if found.run.decode_s else None,
    }
    if mean:
        row |= {name: [round(each, 3) for each in found.stats.by_layer[name]] for name in found.layered}
    if found.run.drafted and drafts:
        row["accepted"] = 1 + found.run.accepted * drafts / found.run.drafted  # tokens a request and step
    return row


def change_columns(native: Outcome, found: Outcome) -> Row:
    """What became of native's answers."""
    change = paired(native.right, found.right)
    places = [diverged_at(a, b) for a, b in zip(native.tokens, found.tokens, strict=True)]
    differing = [place for place in places if place is not None]
    parted = (agreement(native.tokens, found.tokens), len(differing) / len(places))
    values = (change.change, change.low, change.high, change.p, change.lost, change.won, *parted)
    return dict(zip(AGAINST, (*values, median(differing) if differing else None), strict=True))


def unsettled_share(one: Outcome, other: Outcome) -> float:
    """The share of answers that are not the same under other neighbours in the batch."""
    return sum(a != b for a, b in zip(one.tokens, other.tokens, strict=True)) / len(one.tokens)
