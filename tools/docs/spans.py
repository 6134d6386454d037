"""Cells with intervals, for the tables of render.py: what may be called 95 %, and what is only a range."""

from __future__ import annotations

from typing import Any

from xshare.results.columns import count_of
from xshare.statistics import interval_names

Table = tuple[list[str], list[list[str]]]
SURE = "95 %"


class Span(str):
    """A cell with an interval, and the number of values that its median is of; None for a mean or a share of many."""

    values: int | None

    def __new__(cls, text: str, values: int | None = None) -> Span:
        span = super().__new__(cls, text)
        span.values = values
        return span

    @classmethod
    def of(cls, text: str, row: dict[str, Any], column: str = "ratio") -> Span:
        return cls(text, count_of(row, column))

    @classmethod
    def ratio(cls, row: dict[str, Any], column: str = "ratio", digits: int = 2, starts: bool = False) -> Span:
        """A ratio with its interval. `starts`: say where it is of one start of the engines, which differ more than
        pairs of one do."""
        value, low, high = (f"{row[column + end]:.{digits}f}" for end in ("", "_low", "_high"))
        once = ", one start" if starts and row.get("starts") == 1 else ""
        return cls.of(f"{value} ({low} to {high}{once})", row, column)

    def marked(self, mark: str) -> str:
        return f"{self[:-1]}{mark})" if self.endswith(")") else f"{self}{mark}"


def called(titles: list[str], cells: list[list[str]]) -> Table:
    """The table with its intervals called what they are: in a heading, and where its rows differ in the cells.

    A column that says 95 % must know of how many values its intervals are.
    """
    titles, cells = list(titles), [list(line) for line in cells]
    for column, title in enumerate(titles):
        spans = {place: line[column] for place, line in enumerate(cells) if isinstance(line[column], Span)}
        if SURE in title and any(line[column] and place not in spans for place, line in enumerate(cells)):
            raise ValueError(f"{title!r}: a cell does not say of how many values its interval is")
        name, marks = interval_names([span.values for span in spans.values() if isinstance(span, Span)])
        for (place, span), mark in zip(spans.items(), marks, strict=True):
            cells[place][column] = span.marked(mark) if isinstance(span, Span) else span
        if name != SURE:
            titles[column] = title.replace(SURE, name) if SURE in title else f"{title} ({name})"
    return titles, cells
