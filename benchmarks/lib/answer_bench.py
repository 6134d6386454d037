"""One worker's engine for the quality benchmarks: it decodes questions under a policy, and compares with native.

Everything runs in worker processes with one engine each. A setting's native answers are decoded once, and passed to the
workers that measure policies in that setting.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
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
from xshare.workers import Workers

TOGETHER = 3  # batches of texts per forced pass: more leave fewer partly filled steps at the end, and take more memory
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
    """A model, its questions, and how they are decoded."""

    model: str
    options: dict[str, Any]
    tasks: list[Task]
    limit: int  # max_tokens of an answer
    forced: int  # native answers that are teacher-forced, for the KL
    seed: int = 0
    threads: int | None = None
    together: int = 16  # sequences per forward pass: several batches, each with its own set
    drafts: int = 0  # num_speculative_tokens, the most of any setting
    free: int | None = None  # tokens that are decoded freely, where texts are forced; None: `limit`

    def identity(self) -> Row:
        """The settings that tell this job's results from those of another."""
        mark = hashlib.sha256(repr(self.tasks).encode()).hexdigest()[:16]
        questions: Row = {"questions": len(self.tasks), "tasks": mark, "tokens": self.limit, "forced": self.forced}
        free = {} if self.free is None else {"free": self.free}
        return questions | free | {"seed": self.seed, "together": self.together}

    def open(self) -> TransformersEngine:
        if self.threads:
            torch.set_num_threads(self.threads)
        # cuBLAS keeps one workspace, so the same steps give the same tokens: the control is compared with native token
        # for token. No other kernel of decoding changes the order of its sums.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        engine = open_engine("transformers", self.model, drafts=self.drafts, options=self.options)
        assert isinstance(engine, TransformersEngine)
        # Names, not paths: where a folder lies does not matter, and its files are known by their hashes.
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

    def reporting_to(self, advance: Advance) -> Bench:
        """This bench, for a worker in this process: its engine is open already."""
        self.advance = advance
        return self

    def engine(self, drafts: int) -> TransformersEngine:
        """The engine, opened at the first call. It uses this many drafts from its next policy on."""
        if self.opened is None:
            self.opened = self.job.open()
        self.opened.drafts = drafts
        return self.opened

    def tasks(self, setting: Setting) -> list[Task]:
        return ordered(self.job.tasks, setting.mixed, self.job.seed)

    def decode(self, setting: Setting, policy: Policy | None, places: Sequence[int] | None = None) -> Outcome:
        """A policy's answers to the tasks, in their order or in that of `places`. None is native routing."""
        tasks, engine = self.tasks(setting), self.engine(setting.drafts)
        tasks_asked = tasks if places is None else [tasks[i] for i in places]
        engine.lanes = max(1, self.job.together // setting.batch)
        options: dict[str, Any] = {
            "batch": setting.batch,
            "limit": self.job.free or self.job.limit,
            "alike": not setting.mixed,
        }
        outcome = answer(engine, policy, tasks_asked, **options, advance=self.advance)
        outcome.run.answers = []  # their texts have been judged
        return outcome

    def native(self, setting: Setting) -> Row:
        """Native answers, in a form that can be stored."""
        return asdict(setting) | self.decode(setting, None).to_sample()

    def cell(self, setting: Setting, policy: Policy | None, native: Row) -> tuple[Row, list[bool]]:
        """One policy in one setting: its row, and per question whether it was answered rightly."""
        base = Outcome.from_sample(None, native)
        outcome = base if policy is None else self.decode(setting, policy)
        row = (
            {"model": self.engine(setting.drafts).about.model}
            | asdict(setting)
            | {"accepted": None}
            | row_of(outcome, base, setting.drafts)
        )
        kl: Row = {"kl": 0.0, "kl_low": 0.0, "kl_high": 0.0, "kl_answers": 0, "kl_active": row["active"]}
        if policy is not None:
            kl = self.divergence(setting, policy, native)
        return row | kl, outcome.right

    def divergence(self, setting: Setting, policy: Policy, native: Row) -> Row:
        """KL of native's next-token distribution from the policy's, per token, over the forced answers."""
        return self.kl_row(setting, self.compared(setting, policy, native))

    def kl_row(self, setting: Setting, texts: dict[int, Compared]) -> Row:
        """KL columns of texts just compared; `kl_active` is the engine's mean since its policy was set."""
        kl, low, high = mean_kl(list(texts.values()))
        active = self.engine(setting.drafts).stats().mean["experts_active"]
        return {"kl": kl, "kl_low": low, "kl_high": high, "kl_answers": len(texts), "kl_active": active}

    def compared(self, setting: Setting, policy: Policy | None, native: Row) -> dict[int, Compared]:
        """The forced native answers under a policy, by their places among the tasks."""
        engine = self.engine(setting.drafts)
        engine.use(policy)
        if setting not in self.native_texts:
            self.native_texts[setting] = list(self.texts(setting, native, self.job.forced))
        passes = ((places, texts.compare(engine.attached)) for places, texts in self.native_texts[setting])
        return {place: text for places, texts in passes for place, text in zip(places, texts, strict=True)}

    def texts(
        self, setting: Setting, native: Row, most: int | None = None, places: Sequence[int] | None = None
    ) -> Iterator[tuple[list[int], Texts]]:
        """Native's answers as teacher-forced texts in full batches, pass by pass: (places in the pass, texts).

        most    answers at most, divided evenly over the kinds
        places  another order of the answers

        Where the setting does not mix kinds, they come one kind at a time. Answers that ended with their first token
        have nothing to force, and are left out.
        """
        engine, tasks, together = self.engine(setting.drafts), self.tasks(setting), TOGETHER * setting.batch
        order = [i for i in places or range(len(tasks)) if len(native["answers"][i]) > 1]
        kinds = list(dict.fromkeys(tasks[i].kind for i in order))
        for group in [kinds] if setting.mixed else [[kind] for kind in kinds]:
            chosen = [i for i in order if tasks[i].kind in group]
            chosen = chosen if most is None else chosen[: -(-most * len(group) // len(kinds))]
            for pass_places in (chosen[start : start + together] for start in range(0, len(chosen), together)):
                prompts, answers = (
                    [engine.encode(tasks[i].prompt) for i in pass_places],
                    [native["answers"][i] for i in pass_places],
                )
                starts = in_turn(answers, setting.batch, setting.drafts)
                yield pass_places, Texts(engine.attached, prompts, answers, starts=starts, drafts=setting.drafts)

    def recorded(self, advance: Advance = quiet) -> Trace:
        """A trace of native answers to RECORDED questions per kind, with full logits; each kind is a domain."""
        engine = self.engine(0)
        by_kind: dict[str, list[Prompt]] = {}
        for task in self.job.tasks:
            by_kind.setdefault(task.kind, []).append(Prompt(task.prompt, task.kind))
        prompts = [prompt for kind_prompts in by_kind.values() for prompt in kind_prompts[:RECORDED]]
        engine.close()  # recording needs the unmodified model
        options: dict[str, Any] = {"name": engine.about.model, "tokens": self.job.limit, "batch": 2 * RECORDED}
        trace = record(engine.model, engine.tokenizer, prompts, **options, advance=advance)
        engine.use(None)
        return trace


def mean_kl(texts: Sequence[Compared], seed: int = 0) -> tuple[float, float, float]:
    """Mean KL per token, low, high: a bootstrap 95 % interval over answers, since tokens of one are not independent."""
    kl, tokens = np.array([[float(text.kl.sum()), len(text.kl)] for text in texts]).T
    picks = np.random.default_rng(seed).integers(len(texts), size=(2000, len(texts)))
    low, high = np.quantile(kl[picks].sum(1) / tokens[picks].sum(1), [0.025, 0.975])
    return float(kl.sum() / tokens.sum()), float(low), float(high)


@contextmanager
def workers_of(bench: Bench, jobs: int) -> Iterator[Workers]:
    """Workers with a bench like this one each; with one job it is this one. They are closed at the end."""
    workers = Workers(bench.reporting_to if jobs == 1 else partial(type(bench), bench.job), jobs)
    try:
        yield workers
    finally:
        workers.close()


def threads_each(threads: int | None, jobs: int) -> int | None:
    """CPU threads per process: as asked for, or one where several processes share the machine; None: torch decides."""
    return threads or (1 if jobs > 1 else None)
