"""How many rows a step may have, padding included, and for which of them a kernel is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from xshare.kernels.limits import MAX_ROWS


@dataclass(frozen=True)
class Sizes:
    most: int  # rows that may be acted on, by the gates and by how many requests the engine takes
    num_spec_tokens: int = 0
    captured: Sequence[int] = ()  # rows for which the engine captures graphs, and to which it pads a step

    @cached_property
    def max_rows(self) -> int:
        """A step of more is never acted on: padded, it would have more rows than a kernel can take."""
        return next(rows for rows in range(self.most, -1, -1) if self.padded(rows) <= MAX_ROWS)

    @cached_property
    def buckets(self) -> list[int]:
        """Numbers of rows that a kernel is compiled for, powers of two. The last may be more than ever vote: steps are
        padded."""
        return [1 << n for n in range(9) if 1 << n < 2 * self.padded(self.max_rows)]

    def padded(self, rows: int) -> int:
        """The most rows that a step of `rows` may be padded to. With drafts an engine may round captured sizes up to
        whole requests."""
        each = 1 + self.num_spec_tokens
        rounded = [-(-size // each) * each for size in self.captured]
        grids = [[size for size in sizes if size >= rows] for sizes in (self.captured, rounded)]
        return max([rows, *(min(grid) for grid in grids if grid)])
