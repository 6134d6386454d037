"""Cells with intervals, for the tables of render.py: what may be called 95 %, and what is only a range."""

from __future__ import annotations

from typing import Any

from xshare.results.columns import count_of
from xshare.statistics import heading_of, interval_mark

Table = tuple[list[str], list[list[str]]]
SURE = "95 %"


class Span(str):
    """A cell with an interval, the number of values that its median is of (None for a mean or a share of many), and
    what the interval is called where it is no 95 % one."""

    values: int | None
    mark: str

    def __new__(cls, text: str, values: int | None = None, mark: str = "") -> Span:
        span = super().__new__(cls, text)
        span.values, span.mark = values, mark or interval_mark(values)
        return span

    @classmethod
    def of(cls, text: str, row: dict[str, Any], column: str = "ratio") -> Span:
        return cls(text, count_of(row, column))

    @classmethod
    def ratio(cls, row: dict[str, Any], column: str = "ratio", digits: int = 2) -> Span:
        """A ratio with its interval."""
        value, low, high = (f"{row[column + end]:.{digits}f}" for end in ("", "_low", "_high"))
        return cls.of(f"{value} ({low} to {high})", row, column)

    @classmethod
    def of_starts(cls, row: dict[str, Any], form: str = ".2f") -> Span:
        """A ratio with its interval, or with the range of its pairs where they are of one start of the engines, which
        differ more than pairs of one do. `form`: of the ratio, or `%` for the gain."""
        once = "ratio_least" in row  # speed_tables.with_range
        ends = ("", "_least", "_most") if once else ("", "_low", "_high")
        ratios = [row["ratio" + end] for end in ends]
        value, low, high = (f"{100 * (x - 1):+.1f} %" if form == "%" else f"{x:{form}}" for x in ratios)
        mark = f", range of {row['pairs']}, one start" if once else ""
        return cls(f"{value} ({low} to {high})", count_of(row, "ratio"), mark)

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
        name, marks = heading_of([span.mark for span in spans.values() if isinstance(span, Span)])
        for (place, span), mark in zip(spans.items(), marks, strict=True):
            cells[place][column] = span.marked(mark) if isinstance(span, Span) else span
        if name != SURE:
            titles[column] = title.replace(SURE, name) if SURE in title else f"{title} ({name})"
    return titles, cells
