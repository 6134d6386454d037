"""Commands by name, imported only when used: `xshare --version` need not wait for torch."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from xshare.cli.old_options import Command

COMMANDS = ("bench", "demo", "doctor", "methods", "quality", "replay", "report", "tune", "trace", "watch")


class Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        # An unknown name loads all commands, so that the error can suggest the one that was meant.
        for name in [cmd_name] if cmd_name in COMMANDS else COMMANDS:
            if name not in self.commands:
                self.commands[name] = load_command(name)
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # in a command that keeps no partial results
            typer.echo("interrupted: nothing was written", err=True)
            raise typer.Exit(130) from None


def load_command(name: str) -> Any:
    """The command of xshare.cli.NAME: the function of that name, or its `app` of several commands."""
    module = import_module(f"xshare.cli.{name}")
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False)
        app.command(name, cls=Command)(getattr(module, name))
    return typer.main.get_command(app)
