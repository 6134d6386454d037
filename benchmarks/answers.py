"""What the benchmarks of the answers share: an engine, and policies on it in every setting.

Everything runs in worker processes, one engine each. A setting's native answers are decoded once and handed to whoever
measures a policy in it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xshare.engines.by_name import open_engine
from xshare.engines.transformers import Prompt, record
from xshare.engines.transformers.engine import TransformersEngine
from xshare.engines.transformers.teacher_forcing import Compared, Texts, in_turn
from xshare.policy import Policy
from xshare.progress import Advance, quiet
from xshare.quality.answering import Outcome, answer, ordered, row_of
from xshare.quality.task_files import Task
from xshare.results import Row
from xshare.trace import Trace

TOGETHER = 3  # texts in a forced pass, in batches: more leave fewer steps at the end that are not full, and cost memory
RECORDED = 16  # answers of each kind in a trace


@dataclass(frozen=True)
class Setting:
    """How questions are batched."""

    batch: int
    drafts: int
    mixed: bool

    @classmethod
    def of(cls, row: Row) -> Setting:
        return cls(row["batch"], row["drafts"], row["mixed"])


@dataclass(frozen=True)
class Job:
    """A model, and what it is asked."""

    model: str
    options: dict[str, Any]
    tasks: list[Task]
    limit: int  # tokens of an answer
    forced: int  # answers that are forced, for the KL
    seed: int = 0
    threads: int | None = None
    together: int = 16  # sequences that go through one pass, in batches with sets of their own
    drafts: int = 0  # the most of any setting

    def setting(self) -> Row:
        """What tells results apart."""
        mark = hashlib.sha256(repr(self.tasks).encode()).hexdigest()[:16]
        asked: Row = {"questions": len(self.tasks), "tasks": mark, "tokens": self.limit, "forced": self.forced}
        return asked | {"seed": self.seed, "together": self.together}

    def open(self) -> TransformersEngine:
        if self.threads:
            torch.set_num_threads(self.threads)
        # The same tokens from the same steps: cuBLAS keeps one workspace. Nothing else that is decoded with adds up in
        # an order of its own, and the control is compared with native token for token.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        engine = open_engine("transformers", self.model, drafts=self.drafts, options=self.options)
        assert isinstance(engine, TransformersEngine)
        # By their names: where a folder lies does not matter, and its files are told by their marks.
        engine.about.model = Path(engine.about.model).name
        if engine.about.drafter is not None:
            engine.about.drafter = Path(engine.about.drafter).name
        return engine


class Bench:
    """One process's engine, opened when it is first used."""

    def __init__(self, job: Job, advance: Advance = quiet) -> None:
        self.job, self.advance = job, advance
        self.opened: TransformersEngine | None = None
        self.native_texts: dict[Setting, list[tuple[list[int], Texts]]] = {}  # read once, compared with every policy

    def told(self, advance: Advance) -> Bench:
        """Itself, for a worker in this process, which has its engine open already."""
        self.advance = advance
        return self

    def engine(self, drafts: int) -> TransformersEngine:
        """With so many drafts from its next policy on."""
        if self.opened is None:
            self.opened = self.job.open()
        self.opened.drafts = drafts
        return self.opened

    def tasks(self, setting: Setting) -> list[Task]:
        return ordered(self.job.tasks, setting.mixed, self.job.seed)

    def decode(self, setting: Setting, policy: Policy | None, places: Sequence[int] | None = None) -> Outcome:
        """The answers of a policy, to the tasks in their order or in that of `places`."""
        tasks, engine = self.tasks(setting), self.engine(setting.drafts)
        asked = tasks if places is None else [tasks[i] for i in places]
        engine.lanes = max(1, self.job.together // setting.batch)
        options: dict[str, Any] = {"batch": setting.batch, "limit": self.job.limit, "alike": not setting.mixed}
        found = answer(engine, policy, asked, **options, advance=self.advance)
        found.run.answers = []  # their texts are judged by now
        return found

    def native(self, setting: Setting) -> Row:
        """Native answers, in a form that is kept."""
        return asdict(setting) | self.decode(setting, None).to_sample()

    def cell(self, setting: Setting, policy: Policy | None, native: Row) -> tuple[Row, list[bool]]:
        """One policy in one setting: its row, and which questions it answered."""
        base = Outcome.from_sample(None, native)
        found = base if policy is None else self.decode(setting, policy)
        row = (
            {"model": self.engine(setting.drafts).about.model}
            | asdict(setting)
            | {"accepted": None}
            | row_of(found, base, setting.drafts)
        )
        kl: Row = {"kl": 0.0, "kl_low": 0.0, "kl_high": 0.0, "kl_answers": 0, "kl_active": row["active"]}
        if policy is not None:
            kl = self.divergence(setting, policy, native)
        return row | kl, found.right

    def divergence(self, setting: Setting, policy: Policy, native: Row) -> Row:
        """KL of native's next tokens from the policy's, over some of native's answers; per token, over all of them."""
        return self.kl_row(setting, self.compared(setting, policy, native))

    def kl_row(self, setting: Setting, texts: dict[int, Compared]) -> Row:
        """Of what was compared last."""
        kl, low, high = mean_kl(list(texts.values()))
        active = self.engine(setting.drafts).stats().mean["experts_active"]
        return {"kl": kl, "kl_low": low, "kl_high": high, "kl_answers": len(texts), "kl_active": active}

    def compared(self, setting: Setting, policy: Policy | None, native: Row) -> dict[int, Compared]:
        """Some of native's answers under a policy, by their places."""
        engine = self.engine(setting.drafts)
        engine.use(policy)
        if setting not in self.native_texts:
            self.native_texts[setting] = list(self.texts(setting, native, self.job.forced))
        passes = ((places, some.compare(engine.attached)) for places, some in self.native_texts[setting])
        return {place: text for places, some in passes for place, text in zip(places, some, strict=True)}

    def texts(
        self, setting: Setting, native: Row, most: int | None = None, places: Sequence[int] | None = None
    ) -> Iterator[tuple[list[int], Texts]]:
        """Of native's answers as many as asked for, forced in full batches, a kind at a time where they are not mixed;
        in another order if `places` say so. With the places of those in a pass.

        Answers that ended with their first token have nothing to be forced, and are left out.
        """
        engine, tasks, together = self.engine(setting.drafts), self.tasks(setting), TOGETHER * setting.batch
        order = [i for i in places or range(len(tasks)) if len(native["answers"][i]) > 1]
        kinds = list(dict.fromkeys(tasks[i].kind for i in order))
        for group in [kinds] if setting.mixed else [[kind] for kind in kinds]:
            mine = [i for i in order if tasks[i].kind in group]
            mine = mine if most is None else mine[: -(-most * len(group) // len(kinds))]
            for some in (mine[start : start + together] for start in range(0, len(mine), together)):
                prompts, answers = [engine.encode(tasks[i].prompt) for i in some], [native["answers"][i] for i in some]
                starts = in_turn(answers, setting.batch, setting.drafts)
                yield some, Texts(engine.attached, prompts, answers, starts=starts, drafts=setting.drafts)

    def recorded(self, advance: Advance = quiet) -> Trace:
        """A trace of some questions' native answers with full logits, a domain a kind."""
        engine = self.engine(0)
        by_kind: dict[str, list[Prompt]] = {}
        for task in self.job.tasks:
            by_kind.setdefault(task.kind, []).append(Prompt(task.prompt, task.kind))
        prompts = [prompt for each in by_kind.values() for prompt in each[:RECORDED]]
        engine.close()  # recording wants the model as it is
        options: dict[str, Any] = {"name": engine.about.model, "tokens": self.job.limit, "batch": 2 * RECORDED}
        trace = record(engine.model, engine.tokenizer, prompts, **options, advance=advance)
        engine.use(None)
        return trace


def mean_kl(texts: Sequence[Compared], seed: int = 0) -> tuple[float, float, float]:
    """Per token, with a bootstrap 95 % interval over answers: the tokens of one answer are not independent."""
    kl, tokens = np.array([[float(text.kl.sum()), len(text.kl)] for text in texts]).T
    picks = np.random.default_rng(seed).integers(len(texts), size=(2000, len(texts)))
    low, high = np.quantile(kl[picks].sum(1) / tokens[picks].sum(1), [0.025, 0.975])
    return float(kl.sum() / tokens.sum()), float(low), float(high)
