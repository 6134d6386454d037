"""How a benchmark's command is run."""

from __future__ import annotations

import sys
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
