"""How many rows a step may have, with padding, and the numbers of rows for which kernels are compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from xshare.kernels.limits import MAX_ROWS


@dataclass(frozen=True)
class Sizes:
    most: int  # rows that may be acted on, from the gates and the engine's maximum of requests
    num_spec_tokens: int = 0
    captured: Sequence[int] = ()  # numbers of rows for which the engine captures graphs; it pads a step to one of them

    @cached_property
    def max_rows(self) -> int:
        """Larger steps are never acted on: with padding they would have more rows than a kernel can take."""
        return next(rows for rows in range(self.most, -1, -1) if self.padded(rows) <= MAX_ROWS)

    @cached_property
    def buckets(self) -> list[int]:
        """Numbers of rows that a kernel is compiled for, powers of two. The last may exceed `max_rows`, because steps
        are padded."""
        return [1 << n for n in range(9) if 1 << n < 2 * self.padded(self.max_rows)]

    def padded(self, rows: int) -> int:
        """The most rows that a step of `rows` may be padded to. With drafts an engine may round captured sizes up to
        whole requests."""
        per_request = 1 + self.num_spec_tokens
        rounded = [-(-size // per_request) * per_request for size in self.captured]
        grids = [[size for size in sizes if size >= rows] for sizes in (self.captured, rounded)]
        return max([rows, *(min(grid) for grid in grids if grid)])
