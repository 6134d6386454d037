"""Maps rows of a pass to steps, where one pass decodes several steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from xshare.engines.transformers.forward_pass import Pass


@dataclass(frozen=True)
class Places:
    """Where each step's rows are in a pass. By default all rows are one step."""

    rows: Tensor | None = None  # [steps, n], the row of the pass at each place of a step
    filled: Tensor | None = None  # bool [steps, n]: False where a step has fewer than n rows
    back: Tensor | None = None  # [rows], each row's place in the flattened [steps, n]

    @classmethod
    def of_steps(cls, when: Tensor) -> Places:
        """From the step of each row, [rows]. Rows of no step have -1, and read back the first place's result."""
        rows = (when >= 0).nonzero().squeeze(1)
        rows = rows[when[rows].argsort(stable=True)]
        step = when[rows]
        count = step.bincount(minlength=1)  # rows of each step
        place = torch.arange(len(rows), device=when.device) - (count.cumsum(0) - count)[step]
        n = max(1, int(count.max()))
        at, filled, back = when.new_zeros(len(count), n), when.new_zeros(len(count), n, dtype=torch.bool), when * 0
        at[step, place], filled[step, place], back[rows] = rows, True, step * n + place
        return cls(at, filled, back)

    @classmethod
    def of_positions(cls, steps: int, step: Pass) -> Places:
        """Each step reads the same one or more positions of every sequence; a sequence's rows are neighbours."""
        if steps == 1:
            return cls()
        return cls.of_steps(torch.arange(step.rows, device=step.device) % step.new // (step.new // steps))

    @classmethod
    def of_batches(cls, batch: int, step: Pass, kinds: Sequence[int] = ()) -> Places:
        """Each step has `batch` consecutive sequences of one kind; the last step of a kind may have fewer."""
        if len(set(kinds)) > 1:
            return cls.of_steps(
                torch.tensor(batch_numbers(kinds, batch), device=step.device).repeat_interleave(step.new)
            )
        steps = -(-step.sequences // batch)
        if steps == 1:
            return cls()
        rows = torch.arange(steps * batch * step.new, device=step.device).view(steps, -1)
        filled = rows < step.rows
        return cls(rows.where(filled, 0), filled, rows.flatten()[: step.rows])

    def requests(self, of_rows: Tensor) -> Tensor:
        """The request of each row, [rows] -> [steps, n], -1 where there is no row."""
        if self.rows is None:
            return of_rows.unsqueeze(0)
        requests = self.by_step(of_rows.unsqueeze(1)).squeeze(2)
        return requests if self.filled is None else requests.where(self.filled, -1)

    def by_step(self, rows: Tensor) -> Tensor:
        """[rows, x] -> [steps, n, x]"""
        return rows.unsqueeze(0) if self.rows is None else rows[self.rows]

    def by_row(self, steps: Tensor) -> Tensor:
        """[steps, n, x] -> [rows, x]"""
        return steps.squeeze(0) if self.back is None else steps.flatten(0, 1)[self.back]


def batch_numbers(kinds: Sequence[int], batch: int) -> list[int]:
    """The batch number of each sequence: `batch` sequences of one kind per batch."""
    seen: Counter[int] = Counter()
    numbers: dict[tuple[int, int], int] = {}
    of_sequences = []
    for kind in kinds:
        of_sequences.append(numbers.setdefault((kind, seen[kind] // batch), len(numbers)))
        seen[kind] += 1
    return of_sequences
