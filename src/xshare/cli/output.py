"""What the commands share in how they print."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from xshare.engines.base import About
from xshare.errors import XShareError


def wide_console() -> Console:
    """Standard output, lines as long as they need to be: a table cut to a narrow terminal would lose columns."""
    return Console(highlight=False, soft_wrap=True, width=4000)


def number_table(title: str, first: str, *columns: str) -> Table:
    """A plain table: one column of names, the rest numbers."""
    table = Table(first, title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, if that is a terminal; yields a function that is told how many more are done."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.advance(task, done)


def engine_arguments(text: str, timed: bool = False) -> dict[str, Any]:
    """What --engine-args was given. `timed`: steps are, and must be of one batch each."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise XShareError(f'engine-args must be a JSON object such as \'{{"dtype": "float32"}}\', not {text!r}')
    if timed and "lanes" in found:
        raise XShareError(
            "lanes put several batches through one pass, for quality and tune in Transformers: nothing can be timed so"
        )
    return found


def lasting(options: dict[str, Any]) -> dict[str, Any]:
    """Of an engine's arguments those that results depend on: how long to wait for a server is none of them."""
    return {name: value for name, value in options.items() if name != "timeout"}


def made_up(about: About) -> list[str]:
    """What of an engine is not real, and what follows from it."""
    found = []
    if "dummy" in str(about.weights):
        found.append("Random weights: this measures speed, not quality.")
    if "FixedDrafter" in str(about.drafter):
        found.append("Drafts are made up: this measures speed, and what is accepted says nothing of a real drafter.")
    return found


def check_local(engine: str) -> None:
    """Refuse a server where single steps are timed, which its answers do not tell."""
    if engine.startswith(("http://", "https://")):
        raise XShareError(f"engine must be transformers or vllm, not a server: {engine} does not tell when a step ends")
