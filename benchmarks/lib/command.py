"""How a benchmark's command is run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from xshare.errors import XShareError


def run(command: Any) -> None:
    """Run a Typer command. An XShareError is printed as one sentence, and the exit status is 2."""
    try:
        typer.run(command)
    except XShareError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)


def say_results(path: Path, complete: bool) -> None:
    """Say where the results are, and how to continue if cells are missing."""
    typer.echo(f"results: {path}" + ("" if complete else "; incomplete: run the same command to continue"))
