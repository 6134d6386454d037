"""Control: what changes from step to step, in device memory, where a captured graph reads it at every replay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from xshare.errors import LayoutError, PolicyError
from xshare.kernels.control_words import LayerNumber, Word
from xshare.kernels.limits import MAX_EXPERTS, MAX_ROWS, unsupported_policy
from xshare.policy import Policy

Array = npt.NDArray[np.int32]


def layer_numbers(policy: Policy) -> torch.Tensor:
    """The numbers of one layer's policy that may differ by layer. float64 [len(LayerNumber)]"""
    numbers = [0.0] * len(LayerNumber)
    numbers[LayerNumber.M] = min(policy.batch_budget, MAX_EXPERTS)
    numbers[LayerNumber.TAU] = -1.0 if policy.mass is None else policy.mass
    numbers[LayerNumber.RHO] = policy.coverage or 0.0
    numbers[LayerNumber.LAM] = policy.price or 0.0
    return torch.tensor(numbers, dtype=torch.float64)


class Control:
    """The setters change a copy on the host. `push` sends it in one asynchronous transfer, or sends nothing if nothing
    changed, as in steady decoding of one batch. Several pinned buffers take turns, each with an event, so that none is
    written while an earlier transfer still reads it.
    """

    def __init__(self, device: torch.device | str, max_requests: int = MAX_ROWS) -> None:
        # query_start_loc follows the words; blocks of two launches may read past the last request, hence the room
        size = len(Word) + 2 * max_requests + 2
        self.memory = torch.zeros(size, dtype=torch.int32, device=device)
        self.words, self.starts = self.memory[: len(Word)], self.memory[len(Word) :]
        self.own = torch.zeros(
            len(LayerNumber), dtype=torch.float64, device=device
        )  # for layers without numbers of their own
        self.protected = torch.zeros(MAX_ROWS, dtype=torch.int32, device=device)
        self.max_requests = max_requests
        self.policy: Policy | None = None  # what was set last, for FusedSelection.check
        self._host = np.zeros(size, np.int32)
        self._protected: Sequence[int] | Array = ()  # rows, as set last
        self._marks, self._marked = np.zeros(MAX_ROWS, np.int32), False  # 1 per protected row; whether to send them
        self._used = len(Word)  # words of _host that this step needs
        self._changed = True  # since the last push
        self._host[Word.COST] = -1
        self._host[Word.MOST_ROWS] = self._host[Word.MOST_REQUESTS] = np.iinfo(np.int32).max
        self._gate, self._step = (False, False, False), (0, np.zeros(1, np.int32))  # as set last
        on_gpu = self.memory.is_cuda
        # each with room for the marks of protected rows, which are sent only if there are any
        room, turns = size + MAX_ROWS, 8 if on_gpu else 1
        self._buffers = [torch.zeros(room, dtype=torch.int32, pin_memory=on_gpu) for _ in range(turns)]
        self._views = [buffer.numpy() for buffer in self._buffers]
        self._events = [torch.cuda.Event() for _ in self._buffers] if on_gpu else []  # type: ignore[no-untyped-call]
        self._turn = 0

    def set_policy(self, policy: Policy) -> None:
        """Use another policy from the next push on. Budgets above the largest N are cut, which changes nothing. Numbers
        that differ by layer are in FusedSelection.own."""
        if reason := unsupported_policy(policy):
            raise PolicyError(reason)
        host = self._host
        host[Word.K0] = policy.warmup
        host[Word.MR] = min(policy.request_budget, MAX_EXPERTS)
        host[Word.MG] = -1 if policy.device_budget is None else min(policy.device_budget, MAX_EXPERTS)
        host[Word.ROUNDS] = policy.fill == "rounds"
        host[Word.TOPK], host[Word.POWER] = policy.score == "topk", policy.power
        self.own.copy_(layer_numbers(policy))
        self._changed = True
        self.policy = policy

    def set_step(
        self,
        rows: int,
        starts: Sequence[int] | Array | None = None,
        protected: Sequence[int] | Array | None = None,
        table: int | None = None,
    ) -> None:
        """The first `rows` rows vote. `starts`: the boundaries of their requests; None if every row is a request.
        `protected`: rows that keep their native experts. `table`: the index of the cost table to use.

        The same array object is assumed to be unchanged: comparing values would take longer than all the rest.
        """
        self._protect(() if protected is None else protected)
        table = -1 if table is None else table
        if self._host[Word.COST] != table:
            self._host[Word.COST], self._changed = table, True
        starts = np.arange(rows + 1, dtype=np.int32) if starts is None else np.asarray(starts, np.int32)
        if starts is self._step[1] and rows == self._step[0]:
            return
        if len(starts) - 1 > self.max_requests:
            raise LayoutError(f"a step must have at most {self.max_requests} requests, not {len(starts) - 1}")
        self._step, self._changed = (rows, starts), True
        self._host[Word.ROWS], self._host[Word.REQUESTS] = rows, len(starts) - 1
        self._used = len(Word) + len(starts)
        self._host[len(Word) : self._used] = starts

    def _protect(self, rows: Sequence[int] | Array) -> None:
        if rows is self._protected or (len(rows) == 0 and not self._host[Word.PROTECTED]):
            return
        self._protected = rows
        self._marks[:] = 0
        self._marks[np.asarray(rows, np.int64)] = 1
        self._host[Word.PROTECTED], self._changed, self._marked = len(rows) > 0, True, len(rows) > 0

    def set_group(
        self, number: int, least_rows: int = 1, most_rows: int | None = None, most_requests: int | None = None
    ) -> None:
        """For ranks that choose one set: the policy's number, and the rows and requests of all ranks for which
        selection acts. None: no upper limit."""
        most = np.iinfo(np.int32).max
        values = (least_rows, most_rows or most, most_requests or most, number)
        words = slice(Word.LEAST_ROWS, Word.POLICY + 1)
        if tuple(self._host[words]) != values:
            self._host[words], self._changed = values, True

    def set_gate(self, on: bool, sample: bool = False, only_votes: bool = False) -> None:
        """`on`: whether selection acts. `sample`: whether the logits are copied to FusedSelection.seen. `only_votes`:
        among ranks that choose one set, this rank votes and its rows stay native."""
        if self._gate != (on, sample, only_votes):
            self._gate, self._changed = (on, sample, only_votes), True
            self._host[Word.GATE], self._host[Word.SAMPLE] = on + (on and only_votes), sample

    def push(self) -> None:
        """Send what was set. Later launches on the same stream read it."""
        if not self._changed:
            return
        self._changed, used = False, self._used
        self._turn = (self._turn + 1) % len(self._buffers)
        if self._events:
            self._events[self._turn].synchronize()  # does not wait: that transfer was eight pushes ago
        self._views[self._turn][:used] = self._host[:used]
        self.memory[:used].copy_(self._buffers[self._turn][:used], non_blocking=True)
        if self._marked:
            self._marked = False
            self._views[self._turn][-MAX_ROWS:] = self._marks
            self.protected.copy_(self._buffers[self._turn][-MAX_ROWS:], non_blocking=True)
        if self._events:
            self._events[self._turn].record()
