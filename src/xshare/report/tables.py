"""Tables, each in a scrolling box. Values that all rows of a result file share are stated once, above its table."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xshare.report.html import EMPTY, Html, join, tag
from xshare.report.labels import POINTS, SHARES, clipped_interval, column_title, policy_label
from xshare.report.result_files import ResultFile
from xshare.results import Row
from xshare.results.columns import ENDS, count_of, interval_of, number
from xshare.statistics import interval_names


@dataclass(frozen=True)
class Cell:
    text: str
    number: bool = False
    title: str | None = None  # of a heading: the column's name in the file
    small: str = ""  # below the text

    def html(self, element: str, scope: str | None = None) -> Html:
        below = tag("small", self.small) if self.small else EMPTY
        return tag(element, self.text, below, scope=scope, class_="number" if self.number else None, title=self.title)


def box(head: Sequence[Cell], rows: Sequence[Sequence[Cell]], label: str, marked: Sequence[int] = ()) -> Html:
    """A table whose first column names its rows; the rows with indices in `marked` stand out."""
    body = [
        tag(
            "tr",
            *(cell.html(*(("td",) if column else ("th", "row"))) for column, cell in enumerate(row)),
            class_="marked" if place in marked else None,
        )
        for place, row in enumerate(rows)
    ]
    top = tag("thead", tag("tr", *(cell.html("th", "col") for cell in head)))
    return tag(
        "div", tag("table", top, tag("tbody", *body)), class_="scroll", tabindex="0", role="region", aria_label=label
    )


def file_table(file: ResultFile) -> Html:
    columns, same = _split(file)
    first = "policy" if "policy" in columns else columns[0]
    columns = [first, *(column for column in columns if column != first)]
    head: list[Cell] = []
    lines: list[list[Cell]] = [[] for _ in file.rows]
    for column in columns:
        numeric = all(row.get(column) is None or number(row.get(column)) is not None for row in file.rows)
        decimals = _decimals(column, file.rows)
        head.append(Cell(column_title(column), numeric, column))
        for row, line in zip(file.rows, lines, strict=True):
            line.append(Cell(_cell_text(column, row.get(column), decimals), numeric))
        if _has_ends(file, column):
            kind, marks = interval_names([count_of(row, column) for row in file.rows])
            head.append(Cell(kind, number=True, title=f"{column_title(column)}, its interval: {kind}"))
            for row, line, mark in zip(file.rows, lines, marks, strict=True):
                text = _interval(column, row, decimals)
                line.append(Cell(text and text + mark, number=True))
    shared = ", ".join(f"{column_title(column)} {text}" for column, text in same.items())
    size = f"{len(lines)} rows, {len(head)} columns." + (f" In every row: {shared}." if same else "")
    return join(tag("p", size), box(head, lines, f"Table of {file.name}"), tag("p", _download(file)))


def _split(file: ResultFile) -> tuple[list[str], dict[str, str]]:
    """-> columns of the table, and the values that all rows share. The ends of intervals are in neither."""
    hidden = {f"{c}_{end}" for c in file.columns for pair in ENDS for end in pair if _has_ends(file, c)}
    shown = [column for column in file.columns if column not in hidden]
    same = {}
    if len(file.rows) > 1:
        for column in shown:
            values = [json.dumps(row.get(column)) for row in file.rows]
            if column != "policy" and len(set(values)) == 1 and not _has_ends(file, column):
                same[column] = _cell_text(column, file.rows[0].get(column), _decimals(column, file.rows[:1]))
    left = [column for column in shown if column not in same]
    if not left:  # rows that are all alike
        return shown, {}
    return left, {column: value for column, value in same.items() if value}


def _has_ends(file: ResultFile, column: str) -> bool:
    return any(interval_of(row, column) for row in file.rows)


def _interval(column: str, row: Row, decimals: int) -> str:
    interval = clipped_interval(row, column)
    if interval is None:
        return ""
    low, high = (_cell_text(column, end, decimals) for end in interval)
    return f"{low.removesuffix(' %')} to {high}"


def _decimals(column: str, rows: Sequence[Row]) -> int:
    """1 for percent and points, 0 for whole numbers, otherwise enough for four digits of the largest value."""
    if column in SHARES | POINTS:
        return 1
    numbers = [abs(amount) for row in rows if (amount := number(row.get(column))) is not None]
    if all(amount.is_integer() for amount in numbers):
        return 0
    largest = max(numbers)
    return min(6, max(0, 3 - math.floor(math.log10(largest))))


def _cell_text(column: str, value: Any, decimals: int) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if (amount := number(value)) is not None:
        if column in SHARES:
            return f"{100 * amount:.1f} %"
        if column in POINTS:
            return f"{round(100 * amount, 1) + 0:+.1f}"
        tiny = amount and round(amount, decimals) == 0
        return f"{amount:.3g}" if tiny else f"{amount:.{decimals}f}"
    if isinstance(value, list) and value and all(number(item) is not None for item in value):
        return f"{len(value)} values, {min(value):.3g} to {max(value):.3g}"
    if column == "policy":
        return policy_label(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _download(file: ResultFile) -> Html:
    """The file itself, byte for byte, inside the page."""
    data = base64.b64encode(file.raw).decode()
    return tag("a", f"Download {file.name}", href=f"data:application/json;base64,{data}", download=file.name)
