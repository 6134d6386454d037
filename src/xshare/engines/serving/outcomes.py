"""What became of the steps of a rank that chooses with others on a GPU.

There the kernels add up what all ranks say and decide by it, in a captured graph. The host learns of it from what they
leave in device memory: that is copied when the next step begins, and read when the copy has arrived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from xshare.kernels.control_words import MessageWord

Told = Callable[
    [int, int, bool], bool
]  # rows and requests of all ranks, whether they agree -> whether a set was chosen
TURNS = 8  # copies under way at most


class Outcomes:
    def __init__(self, said: Tensor) -> None:
        """`said`: the end of a layer's message, int64 [len(MessageWord)]; all layers of a step leave the same there."""
        self.said = said
        self._host = [torch.zeros(len(MessageWord), dtype=torch.int64, pin_memory=said.is_cuda) for _ in range(TURNS)]
        self._events = [torch.cuda.Event() for _ in self._host] if said.is_cuda else []  # type: ignore[no-untyped-call]
        self._running: Told | None = None  # of the step that runs
        self._copied: deque[tuple[int, Told]] = deque()  # by number of the copy, oldest first
        self._turn = 0

    def begin(self, told: Told) -> None:
        """A step begins in which this rank votes: who is to be told."""
        self._running = told

    def end(self) -> None:
        """The step has been launched, and no other yet."""
        if self._running is None:
            return
        if len(self._copied) == TURNS:
            self._read()  # long past
        self._host[self._turn].copy_(self.said, non_blocking=True)
        if self._events:
            self._events[self._turn].record()
        self._copied.append((self._turn, self._running))
        self._running, self._turn = None, (self._turn + 1) % TURNS

    def settle(self) -> bool:
        """Wait for what is under way, and tell of it; whether a set was chosen in the last of them."""
        chosen = False
        while self._copied:
            chosen = self._read()
        return chosen

    def _read(self) -> bool:
        turn, told = self._copied.popleft()
        if self._events:
            self._events[turn].synchronize()
        said = self._host[turn].tolist()
        agree = said[MessageWord.VOTING] * said[MessageWord.SQUARED] == said[MessageWord.POLICY] ** 2
        return told(said[MessageWord.ROWS], said[MessageWord.REQUESTS], agree)
