"""Ctrl-C in a command that keeps its measurements: says what the file holds and how to continue."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from xshare.results import Row
from xshare.results.stamp import without_secrets

STOPPED = 130  # exit code of a process ended by SIGINT, as shells report it


@contextmanager
def says_what_is_kept(out: Path | None, holds: Callable[[Row], str], goes_on: bool = True) -> Iterator[None]:
    """On Ctrl-C, print what is kept. `holds` describes a result file. `goes_on`: the same command continues it."""
    try:
        yield
    except KeyboardInterrupt:
        command = shlex.join(["xshare", *without_secrets(sys.argv[1:])])
        if out is None:
            message = "nothing was kept"
            message += "; with --out FILE the same command goes on from what it has measured" if goes_on else ""
        elif not out.exists():
            message = f"nothing was measured yet, {out} was not written; to start again: {command}"
        else:
            message = f"{out} holds {holds(json.loads(out.read_text()))}"
            message += f"; to go on: {command}" if goes_on else "; to start again, remove it or name another file"
        typer.echo(f"interrupted: {message}", err=True)
        raise typer.Exit(STOPPED) from None


def plural(number: int, what: str) -> str:
    """`1 repeat`, `3 repeats`."""
    return f"{number} {what}{'' if number == 1 else 's'}"
