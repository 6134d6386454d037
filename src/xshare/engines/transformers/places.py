"""Where the rows of several steps are, if one pass decodes more than one: side by side, or position by position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xshare.engines.transformers.passes import Pass


@dataclass(frozen=True)
class Places:
    """By default all rows of a pass are one step."""

    rows: Tensor | None = None  # [steps, n], the row of the pass at each place of a step
    there: Tensor | None = None  # bool [steps, n]: steps of fewer rows are filled up
    back: Tensor | None = None  # [rows], the place of each row, steps one after another

    @classmethod
    def of_positions(cls, steps: int, step: Pass) -> Places:
        """Steps read the same positions of every sequence, one or more; a sequence's are neighbours in a step."""
        if steps == 1:
            return cls()
        rows = torch.arange(step.rows, device=step.device)
        rows = rows.view(-1, steps, step.new // steps).transpose(0, 1).flatten(1)
        return cls(rows, None, rows.flatten().argsort())

    @classmethod
    def of_batches(cls, batch: int, step: Pass) -> Places:
        """`batch` sequences after another are a step, the last of them perhaps fewer."""
        steps = -(-step.sequences // batch)
        if steps == 1:
            return cls()
        rows = torch.arange(steps * batch * step.new, device=step.device).view(steps, -1)
        there = rows < step.rows
        return cls(rows.where(there, 0), there, rows.flatten()[: step.rows])

    def requests(self, whose: Tensor) -> Tensor:
        """Whose each row is, [rows] -> [steps, n], -1 where there is no row."""
        found = self.by_step(whose.unsqueeze(1)).squeeze(2)
        return found if self.there is None else found.where(self.there, -1)

    def by_step(self, rows: Tensor) -> Tensor:
        """[rows, x] -> [steps, n, x]"""
        return rows.unsqueeze(0) if self.rows is None else rows[self.rows]

    def by_row(self, steps: Tensor) -> Tensor:
        """[steps, n, x] -> [rows, x]"""
        return steps.squeeze(0) if self.back is None else steps.flatten(0, 1)[self.back]
