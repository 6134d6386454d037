"""Where the rows of several steps are, if one pass decodes more than one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from xshare.engines.transformers.forward_pass import Pass


@dataclass(frozen=True)
class Places:
    """By default all rows of a pass are one step."""

    rows: Tensor | None = None  # [steps, n], the row of the pass at each place of a step
    there: Tensor | None = None  # bool [steps, n]: steps of fewer rows are filled up
    back: Tensor | None = None  # [rows], the place of each row, steps one after another

    @classmethod
    def of_steps(cls, when: Tensor) -> Places:
        """The step of each row, [rows]; -1 for rows of none, which go where the first of all goes."""
        rows = (when >= 0).nonzero().squeeze(1)
        rows = rows[when[rows].argsort(stable=True)]
        step = when[rows]
        count = step.bincount(minlength=1)  # rows of each step
        place = torch.arange(len(rows), device=when.device) - (count.cumsum(0) - count)[step]
        n = max(1, int(count.max()))
        at, there, back = when.new_zeros(len(count), n), when.new_zeros(len(count), n, dtype=torch.bool), when * 0
        at[step, place], there[step, place], back[rows] = rows, True, step * n + place
        return cls(at, there, back)

    @classmethod
    def of_positions(cls, steps: int, step: Pass) -> Places:
        """Steps read the same positions of every sequence, one or more; a sequence's are neighbours in a step."""
        if steps == 1:
            return cls()
        return cls.of_steps(torch.arange(step.rows, device=step.device) % step.new // (step.new // steps))

    @classmethod
    def of_batches(cls, batch: int, step: Pass, kinds: Sequence[int] = ()) -> Places:
        """`batch` sequences after another are a step, the last of them perhaps fewer; each kind's for themselves."""
        if len(set(kinds)) > 1:
            return cls.of_steps(torch.tensor(numbered(kinds, batch), device=step.device).repeat_interleave(step.new))
        steps = -(-step.sequences // batch)
        if steps == 1:
            return cls()
        rows = torch.arange(steps * batch * step.new, device=step.device).view(steps, -1)
        there = rows < step.rows
        return cls(rows.where(there, 0), there, rows.flatten()[: step.rows])

    def requests(self, whose: Tensor) -> Tensor:
        """Whose each row is, [rows] -> [steps, n], -1 where there is no row."""
        if self.rows is None:
            return whose.unsqueeze(0)
        found = self.by_step(whose.unsqueeze(1)).squeeze(2)
        return found if self.there is None else found.where(self.there, -1)

    def by_step(self, rows: Tensor) -> Tensor:
        """[rows, x] -> [steps, n, x]"""
        return rows.unsqueeze(0) if self.rows is None else rows[self.rows]

    def by_row(self, steps: Tensor) -> Tensor:
        """[steps, n, x] -> [rows, x]"""
        return steps.squeeze(0) if self.back is None else steps.flatten(0, 1)[self.back]


def numbered(kinds: Sequence[int], batch: int) -> list[int]:
    """The number of each one's batch."""
    seen: Counter[int] = Counter()
    numbers: dict[tuple[int, int], int] = {}
    found = []
    for kind in kinds:
        found.append(numbers.setdefault((kind, seen[kind] // batch), len(numbers)))
        seen[kind] += 1
    return found
