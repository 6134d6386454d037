"""xshare watch: what selection does in a running vLLM server."""

from __future__ import annotations

import json
import time
from collections import deque
from contextlib import ExitStack
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from xshare.cli import options as take
from xshare.cli.interrupted import STOPPED
from xshare.cli.output import wide_console
from xshare.cli.watch_view import record, view
from xshare.engines.client import Access, Http, ServerError
from xshare.engines.server_metrics import Between, Reading, read
from xshare.errors import XShareError

WINDOW = 10  # readings per rate


def watch(
    url: Annotated[str, typer.Argument(help="A vLLM server with an xshare key: http://127.0.0.1:8000")],
    interval: Annotated[float, typer.Option(help="Seconds between two readings.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one view, of one interval, and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 10.0,
    api_key: take.ApiKey = None,
    ca_file: take.CaFile = None,
) -> None:
    """A live view of a server: policy, steps, experts by layer, shares kept, tokens per second, protected rows."""
    for name, value in (("interval", interval), ("timeout", timeout)):
        if not 0 < value < 1e6:
            raise XShareError(f"{name} must be a number of seconds above 0, not {value:g}")
    http = Http(url, timeout, Access(api_key, ca_file))
    try:
        look(http, interval, once, as_json)
    except KeyboardInterrupt:
        raise typer.Exit(STOPPED) from None


def look(http: Http, interval: float, once: bool, as_json: bool) -> None:
    """Show views once or until Ctrl-C. On a terminal, each view replaces the last."""
    readings = deque([read(http)], maxlen=WINDOW)
    console = Console(highlight=False)
    with ExitStack() as closing:
        live: Live | None = None
        if console.is_terminal and not once and not as_json:
            live = closing.enter_context(Live(console=console, auto_refresh=False))

        def show(trouble: str | None = None) -> None:
            between = Between(readings[0], readings[-1])
            if as_json:
                print(json.dumps(record(http.url, between, trouble)), flush=True)
            elif live is None:
                wide_console().print(view(http.url, between, trouble=trouble))
            else:
                live.update(view(http.url, between, console.height, trouble), refresh=True)

        if live is not None:
            show()
        while True:
            time.sleep(interval)
            show(next_reading(http, readings, patient=not once))
            if once:
                return


def next_reading(http: Http, readings: deque[Reading], patient: bool) -> str | None:
    """Add a reading. Returns the error if the server does not answer and we are `patient`: it may be restarting."""
    try:
        new = read(http)
    except ServerError as error:
        if not patient:
            raise
        return str(error)
    if not new.follows(readings[-1]):
        readings.clear()
    readings.append(new)
    return None
