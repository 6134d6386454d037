"""Batches for training, without end: prose and code from memory, tasks made by other processes as they are needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from data import Rows, documents, held_out, prose_rows, task_rows
from settings import ANSWER, LENGTH, NANO, PROSE, QUESTION, mix, sizes
from tokenizers import Tokenizer
from torch import Tensor

AT_ONCE = 256  # rows of tasks that a process makes before it hands them over


def tokenizer(folder: Path = NANO) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def prose(corpus: Path, folder: Path, length: int, domain: str, held: bool = False, most: int | None = None) -> Rows:
    """In tokens of the model in `folder`."""
    texts = [text for text in documents(corpus, domain) if held_out(text) == held]
    return prose_rows(tokenizer(folder), texts, length)[:most]


def tasks(model: str, folder: Path, short: bool, seed: int) -> Rows:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are parallel already
    return task_rows(tokenizer(folder), AT_ONCE, LENGTH[model], seed, sizes(model, short))


class Feed:
    def __init__(
        self, model: str, corpus: Path, rows: int, seed: int, workers: int, short: bool, folder: Path = NANO
    ) -> None:
        """folder: the model whose tokenizer is used"""
        self.model, self.folder, self.rows, self.rng = model, folder, rows, np.random.default_rng(seed)
        self.short = short  # may change: from then on questions of all sizes are made
        self.pool = ProcessPoolExecutor(workers, get_context("spawn"))
        self.mix = mix(model)
        self.shares = np.array(list(self.mix.values())) / sum(self.mix.values())
        domains = [*PROSE, "python"]
        texts = self.pool.map(partial(prose, corpus, folder, LENGTH[model]), domains)
        self.stock = dict(zip(domains, texts, strict=True))
        self.tasks = self._tasks(seed, workers)
        special = tokenizer(folder)
        self.question, self.answer = special.token_to_id(QUESTION), special.token_to_id(ANSWER)

    def _tasks(self, seed: int, workers: int) -> Iterator[np.ndarray]:
        """Row by row. Every process is kept two jobs ahead, and no more."""
        seeds = count(seed * 1_000_000)

        def begin() -> Future[Rows]:
            return self.pool.submit(tasks, self.model, self.folder, self.short, next(seeds))

        waiting = [begin() for _ in range(2 * workers)]
        while True:
            done = waiting.pop(0).result()
            waiting.append(begin())
            yield from done

    def batch(self) -> tuple[Tensor, Tensor]:
        """-> inputs and targets, int64 [rows, length]; -100 where nothing is to be learnt: inside a question"""
        counts = self.rng.multinomial(self.rows, self.shares)
        parts = []
        for domain, number in zip(self.mix, counts, strict=True):
            if domain == "tasks":
                parts += [next(self.tasks)[None] for _ in range(number)]
            else:
                stock = self.stock[domain]
                parts.append(stock[self.rng.integers(len(stock), size=number)])
        rows = np.concatenate(parts).astype(np.int64)
        return as_batch(rows, self.question, self.answer)

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)  # multiprocessing's own pool can wait for itself for ever


def as_batch(rows: np.ndarray, question: int, answer: int) -> tuple[Tensor, Tensor]:
    in_question = np.cumsum(rows == question, axis=1) - np.cumsum(rows == answer, axis=1) > 0  # from <|question|> on
    inputs, targets = rows[:, :-1], rows[:, 1:].copy()
    targets[in_question[:, 1:] | (rows[:, 1:] == answer)] = -100
    return torch.from_numpy(np.ascontiguousarray(inputs)), torch.from_numpy(targets)
