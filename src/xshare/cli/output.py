"""What the commands share: tables, progress bars, engine options and notes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from xshare.engines.base import About
from xshare.engines.by_name import NAMES, default_engine
from xshare.errors import XShareError, short_repr
from xshare.progress import Advance
from xshare.staircase import Stairs, read_stairs

WIDTH = 100  # characters per table line, at most


def wide_console() -> Console:
    """Standard output, lines as long as they need to be: a table cut to a narrow terminal would lose columns."""
    return Console(highlight=False, soft_wrap=True, width=4000)


def number_table(title: str, first: str, *columns: str) -> Table:
    """A plain table: one column of names, the rest numbers."""
    table = Table(first, title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def print_table(table: Table, *spare: str, kept_in: str = "--out FILE keeps them") -> None:
    """Print a table at most WIDTH wide. Columns in `spare` are dropped first, then the last ones; a line names them.

    Columns of the same name are told apart by the column before them, as in `accuracy 95 %`.
    """
    console = wide_console()
    names = column_names(table)
    order = [name for name in spare if name in names]
    order += [name for name in reversed(names[1:]) if name not in order]
    left_out: list[str] = []
    fitting = table
    while console.measure(fitting).maximum > WIDTH and order:
        left_out.append(order.pop(0))
        columns = [column for column, name in zip(table.columns, names, strict=True) if name not in left_out]
        fitting = number_table(str(table.title), *(str(column.header) for column in columns))
        for cells in zip(*(column.cells for column in columns), strict=True):
            fitting.add_row(*cells)
    console.print(fitting)
    if left_out:
        dropped = ", ".join(sorted(left_out, key=names.index))
        console.print(f"Left out, to fit {WIDTH} columns: {dropped}; {kept_in}.")


def column_names(table: Table) -> list[str]:
    """Unique names of the columns: prefixed by the column before them if two have the same header."""
    headers = [str(column.header) for column in table.columns]
    return [
        name if headers.count(name) == 1 else f"{headers[place - 1]} {name}".strip()
        for place, name in enumerate(headers)
    ]


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Advance]:
    """A bar on standard error, if that is a terminal; yields a function to call with the number of finished items."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.advance(task, done)


def chosen_engine(engine: str | None, out: Path | None) -> str:
    """The engine named by the user, or by the file to continue, or the default of this machine."""
    return engine or engine_of(out) or default_engine()


def engine_of(out: Path | None) -> str | None:
    """The engine whose results a file holds; None if it is not one that runs in this process."""
    try:
        engine = None if out is None else json.loads(out.read_text())["provenance"]["fingerprint"]["engine"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return engine if engine in NAMES else None


def engine_arguments(
    text: str, timed: bool = False, device: str | None = None, dtype: str | None = None
) -> dict[str, Any]:
    """The options from --engine-args, --device and --dtype. `timed`: refuse options that put several batches into one
    step, which could not be timed."""
    try:
        options = json.loads(text)
    except (ValueError, RecursionError):
        options = None
    if not isinstance(options, dict):
        raise XShareError(
            f'engine-args must be a JSON object such as \'{{"dtype": "float32"}}\', not {short_repr(text)}'
        )
    if timed and "lanes" in options:
        raise XShareError(
            "lanes put several batches through one pass, for quality and tune in Transformers: nothing can be timed so"
        )
    for name, value in (("device", device), ("dtype", dtype)):
        if value is not None and options.setdefault(name, value) != value:
            raise XShareError(f"--{name} is {value} and engine-args say {options[name]!r}: say it once")
    return options


def result_options(options: dict[str, Any]) -> dict[str, Any]:
    """The engine arguments that results depend on, which excludes the timeout for a server."""
    return {name: value for name, value in options.items() if name != "timeout"}


def unreal_notes(about: About) -> list[str]:
    """Notes on parts of an engine that are not real, and what follows from that."""
    notes = []
    if "dummy" in str(about.weights):
        notes.append("Random weights: this measures speed, not quality.")
    if "FixedDrafter" in str(about.drafter):
        notes.append("Drafts are made up: this measures speed, and what is accepted says nothing of a real drafter.")
    return notes


def cut_off_notes(share: float, policy: str, tokens: int) -> list[str]:
    """A note if more than 5 % of the answers were cut off at the token limit."""
    if share <= 0.05:
        return []
    return [
        f"{share:.0%} of the answers of {policy} were cut off at {tokens} tokens: more --tokens might let them end."
    ]


def staircase_file(path: Path, requests: int, drafts: int) -> Stairs:
    """The staircase for batches of so many requests. Refuses one without costs for them; warns of one that is not
    settled."""
    stairs = read_stairs(path)
    stairs.check_batch(requests, drafts)
    for note in stairs.notes():
        typer.echo(f"warning: {note}", err=True)
    return stairs


def check_local(engine: str) -> None:
    """Refuse a server: its answers do not tell when a step ends."""
    if engine.startswith(("http://", "https://")):
        raise XShareError(f"engine must be transformers or vllm, not a server: {engine} does not tell when a step ends")
