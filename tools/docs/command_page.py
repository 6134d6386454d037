"""docs/reference/commands.md: every option of every command, from its function."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from fields import MADE, limits, table, without_none

from xshare.cli.lazy import COMMANDS


def commands() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The words and the function of every command."""
    for name in COMMANDS:
        module = import_module(f"xshare.cli.{name}")
        group = getattr(module, "app", None)
        if group is None:
            yield name, getattr(module, name)
        else:
            for registered in group.registered_commands:
                yield f"{name} {registered.name or registered.callback.__name__}", registered.callback


def command_section(name: str, function: Callable[..., Any]) -> str:
    hints = typing.get_type_hints(function, include_extras=True)
    arguments, options = [], []
    for parameter in inspect.signature(function).parameters.values():
        kind, info = get_args(hints[parameter.name])
        if info.hidden:
            continue
        meaning = info.help or ""
        if isinstance(info, typer.models.ArgumentInfo):
            arguments.append((info.metavar or parameter.name.upper(), meaning))
            continue
        names = ", ".join(f"`{spelling}`" for spelling in spellings(parameter.name, kind, info))
        options.append((names, values(kind, info), default(parameter, info), meaning))
    usage = " ".join([f"xshare {name}", *(word for word, _ in arguments), *(["[OPTIONS]"] if options else [])])
    text = f"## xshare {name}\n\n{inspect.getdoc(function)}\n\n```sh\n{usage}\n```\n"
    text += (
        f"\n{table(['argument', 'meaning'], ((f'`{word}`', help_text) for word, help_text in arguments))}"
        if arguments
        else ""
    )
    text += f"\n{table(['option', 'value', 'default', 'meaning'], options)}" if options else ""
    return text


def spellings(name: str, kind: Any, info: Any) -> list[str]:
    """The names that the option declares (Typer stores the first as its default), or the parameter's own name."""
    named = [word for word in (info.default, *(info.param_decls or ())) if isinstance(word, str) and word[0] == "-"]
    own = name.replace("_", "-")
    return named or [f"--{own}", *([f"--no-{own}"] if kind is bool else [])]


def values(kind: Any, info: Any) -> str:
    low, high = info.min, info.max
    kind, several = without_none(kind), ""
    if get_origin(kind) is list:
        kind, several = get_args(kind)[0], ", may be repeated"
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind)) + several
    name = {int: "whole number", float: "number", str: "text", Path: "file", bool: "flag"}[kind]
    return name + limits(low, high) + several


def default(parameter: inspect.Parameter, info: Any) -> str:
    if isinstance(info.show_default, str):
        return info.show_default
    if parameter.default is inspect.Parameter.empty:
        return "required"
    if isinstance(parameter.default, bool):
        return "on" if parameter.default else ""
    return "" if parameter.default is None else f"`{parameter.default}`"


def commands_page() -> str:
    intro = "Exit code 2 and one sentence on standard error mean that something was wrong with what was asked."
    return "\n".join(
        [f"# Commands\n\n{MADE}\n{intro}\n", *(command_section(name, function) for name, function in commands())]
    )
