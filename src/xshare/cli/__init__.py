"""The command line: one file per command. A user's mistake gives one sentence and exit code 2, never a traceback."""

import signal
import sys
from typing import Annotated

import typer

from xshare.cli.lazy import Commands
from xshare.errors import XShareError
from xshare.version import __version__

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Batch-aware expert selection for mixture-of-experts decoding.",
)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"xshare {__version__}")
        raise typer.Exit


@app.callback()
def before_any_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # raises SystemExit, so that cleanup runs
    try:
        app()
    except XShareError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        typer.echo(f"error: {error.filename or 'input or output'}: {error.strerror or error}", err=True)
        sys.exit(2)
