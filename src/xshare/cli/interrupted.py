"""Ctrl-C in a command that keeps what it measures: which file holds what, and how to go on."""

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

STOPPED = 130  # as a shell counts what SIGINT has ended


@contextmanager
def says_what_is_kept(out: Path | None, holds: Callable[[Row], str], goes_on: bool = True) -> Iterator[None]:
    """`holds` says in words what a result file holds. Not `goes_on`: the command only starts anew."""
    try:
        yield
    except KeyboardInterrupt:
        command = shlex.join(["xshare", *without_secrets(sys.argv[1:])])
        if out is None:
            said = "nothing was kept"
            said += "; with --out FILE the same command goes on from what it has measured" if goes_on else ""
        elif not out.exists():
            said = f"nothing was measured yet, {out} was not written; to start again: {command}"
        else:
            said = f"{out} holds {holds(json.loads(out.read_text()))}"
            said += f"; to go on: {command}" if goes_on else "; to start again, remove it or name another file"
        typer.echo(f"interrupted: {said}", err=True)
        raise typer.Exit(STOPPED) from None


def plural(number: int, what: str) -> str:
    """`1 repeat`, `3 repeats`."""
    return f"{number} {what}{'' if number == 1 else 's'}"
