"""Whether selection acted on a step, where several ranks choose together on a GPU.

There the kernels add up what all ranks say and decide, inside a captured graph. They leave the sums in device memory.
The host copies them when the next step begins, and reads them when the copy has arrived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from xshare.kernels.control_words import MessageWord

# Called with the rows and requests of all ranks and whether these agree; returns whether a set was chosen.
OnOutcome = Callable[[int, int, bool], bool]
MAX_COPIES = 8  # on their way at once


class Outcomes:
    def __init__(self, said: Tensor) -> None:
        """`said`: the end of a layer's message, int64 [len(MessageWord)], the same in all layers of a step."""
        self.said = said
        self._host = [
            torch.zeros(len(MessageWord), dtype=torch.int64, pin_memory=said.is_cuda) for _ in range(MAX_COPIES)
        ]
        self._events = [torch.cuda.Event() for _ in self._host] if said.is_cuda else []  # type: ignore[no-untyped-call]
        self._running: OnOutcome | None = None  # for the step that runs
        self._copied: deque[tuple[int, OnOutcome]] = deque()  # number of the copy and its callback, oldest first
        self._next = 0

    def begin(self, on_outcome: OnOutcome) -> None:
        """A step begins in which this rank votes. `on_outcome` is called once its outcome is known."""
        self._running = on_outcome

    def end(self) -> None:
        """The step has been launched, and no other yet."""
        if self._running is None:
            return
        if len(self._copied) == MAX_COPIES:
            self._read()  # has arrived long ago
        self._host[self._next].copy_(self.said, non_blocking=True)
        if self._events:
            self._events[self._next].record()
        self._copied.append((self._next, self._running))
        self._running, self._next = None, (self._next + 1) % MAX_COPIES

    def settle(self) -> bool:
        """Wait for all copies and report their outcomes; whether a set was chosen in the last step."""
        chosen = False
        while self._copied:
            chosen = self._read()
        return chosen

    def _read(self) -> bool:
        copy, on_outcome = self._copied.popleft()
        if self._events:
            self._events[copy].synchronize()
        said = self._host[copy].tolist()
        agree = said[MessageWord.VOTING] * said[MessageWord.SQUARED] == said[MessageWord.POLICY] ** 2
        return on_outcome(said[MessageWord.ROWS], said[MessageWord.REQUESTS], agree)
