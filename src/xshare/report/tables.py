"""A result file as a table: what is the same in every row is said once, an interval is one column."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

from xshare.report.html import EMPTY, Html, join, tag
from xshare.report.read import ResultFile
from xshare.results.columns import ENDS, ends, number

Cells = list[str]


def file_table(file: ResultFile) -> Html:
    columns, same = _split(file)
    first = "policy" if "policy" in columns else columns[0]
    columns = [first, *(column for column in columns if column != first)]
    cells = {column: _column(file, column) for column in columns}
    numeric = {column: all(_is_number(row.get(column)) for row in file.rows) for column in columns}
    spans = {column for column in columns if any(ends(row, column) for row in file.rows)}
    head: list[Html] = []
    for column in columns:
        head.append(tag("th", column, scope="col", class_="number" if numeric[column] else None))
        if column in spans:
            head.append(tag("th", "95 %", scope="col", class_="number", aria_label=f"{column}, 95 % interval"))
    body = []
    for place in range(len(file.rows)):
        line = []
        for column in columns:
            element, scope = ("th", "row") if column == first else ("td", None)
            line.append(
                tag(element, cells[column][place], scope=scope, class_="number" if numeric[column] else None),
            )
            if column in spans:
                line.append(tag("td", _interval(file, column, place), class_="number"))
        body.append(tag("tr", *line))
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body))
    box = tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=f"Table of {file.name}")
    said = tag("p", "In every row: " + ", ".join(f"{c} {v}" for c, v in same.items()) + ".") if same else EMPTY
    return join(said, box, tag("p", _download(file)))


def _split(file: ResultFile) -> tuple[list[str], dict[str, str]]:
    """-> columns of the table, and what all rows have in common. The ends of intervals are in neither."""
    hidden = {f"{c}_{end}" for c in file.columns for pair in ENDS for end in pair if _has_ends(file, c)}
    shown = [column for column in file.columns if column not in hidden]
    same = {}
    if len(file.rows) > 1:
        for column in shown:
            values = [json.dumps(row.get(column)) for row in file.rows]
            if column != "policy" and len(set(values)) == 1 and not _has_ends(file, column):
                value = file.rows[0].get(column)
                same[column] = _spelled(value, _decimals([value]))
    left = [column for column in shown if column not in same]
    if not left:  # rows that are all alike
        return shown, {}
    return left, {column: value for column, value in same.items() if value}


def _has_ends(file: ResultFile, column: str) -> bool:
    return any(ends(row, column) for row in file.rows)


def _column(file: ResultFile, column: str) -> Cells:
    """The cells of a column, its numbers with the same number of decimals."""
    values = [row.get(column) for row in file.rows]
    decimals = _decimals(values)
    return [_spelled(value, decimals) for value in values]


def _interval(file: ResultFile, column: str, place: int) -> str:
    found = ends(file.rows[place], column)
    decimals = _decimals([row.get(column) for row in file.rows])
    return "" if found is None else f"{_spelled(found[0], decimals)} to {_spelled(found[1], decimals)}"


def _is_number(value: Any) -> bool:
    return value is None or number(value) is not None


def _decimals(values: list[Any]) -> int:
    """About four digits of the largest; none for whole numbers."""
    numbers = [abs(found) for value in values if (found := number(value)) is not None]
    if all(found.is_integer() for found in numbers):
        return 0
    largest = max(numbers)
    return min(6, max(0, 3 - math.floor(math.log10(largest))))


def _spelled(value: Any, decimals: int) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if (found := number(value)) is not None:
        tiny = found and round(found, decimals) == 0
        return f"{found:.3g}" if tiny else f"{found:.{decimals}f}"
    if isinstance(value, list) and value and all(number(item) is not None for item in value):
        return f"{len(value)} values, {min(value):.3g} to {max(value):.3g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _download(file: ResultFile) -> Html:
    """The file itself, byte for byte, inside the page."""
    data = base64.b64encode(file.raw).decode()
    return tag("a", f"Download {file.name}", href=f"data:application/json;base64,{data}", download=file.name)
