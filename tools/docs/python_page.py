"""docs/reference/python.md: every name of the package."""

from __future__ import annotations

import inspect
import re
from dataclasses import is_dataclass
from typing import Any

from fields import MADE, table

import xshare
from xshare.policy import Policy


def signature(thing: Any) -> str:
    """A call, one argument per line."""
    parameters = inspect.signature(thing).parameters.values()
    lines, starred = [], False
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            starred = True
            lines.append("*")
        kind = (
            parameter.annotation
            if isinstance(parameter.annotation, str)
            else getattr(parameter.annotation, "__name__", "Any")
        )
        start = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}"
        lines.append(f"{parameter.name}: {kind}{start}")
    inner = "".join(f"    {line},\n" for line in lines)
    return f"xshare.{thing.__name__}(\n{inner})"


def python_page() -> str:
    things = {name: getattr(xshare, name) for name in xshare.__all__}
    functions = {name: thing for name, thing in things.items() if inspect.isfunction(thing)}
    classes = {name: thing for name, thing in things.items() if inspect.isclass(thing)}
    errors = {name: thing for name, thing in classes.items() if issubclass(thing, Exception)}
    sections = [
        f"## {name}\n\n```python\n{signature(thing)}\n```\n\n{prose(thing)}" for name, thing in functions.items()
    ]
    sections += [f"## {name}\n\n{class_text(thing)}" for name, thing in classes.items() if name not in errors]
    rows = ((f"`{name}`", " ".join((inspect.getdoc(thing) or "").split())) for name, thing in errors.items())
    return f"""# Python

{MADE}
`import xshare`. [In Python](../python.md) shows how to use it.

{chr(10).join(sections)}
## Errors

All are subclasses of `XShareError`, which is a `ValueError`.

{table(["error", "it says of"], rows)}"""


def class_text(thing: type) -> str:
    """Its docstring; of a dataclass its fields, with what its source says beside them; else how one is made."""
    if is_dataclass(thing):
        sources = [inspect.getsource(base) for base in reversed(thing.__mro__) if is_dataclass(base)]
        lines = [
            line.strip() for source in sources for line in re.findall(r"^    \w+: .*$", source, flags=re.MULTILINE)
        ]
        return f"```python\nclass xshare.{thing.__name__}:\n" + "".join(f"    {line}\n" for line in lines) + "```\n"
    return prose(thing) if thing is Policy else f"```python\n{signature(thing)}\n```\n\n{prose(thing)}"


def prose(thing: Any) -> str:
    """A docstring as it stands: its lines may be a table."""
    return f"```text\n{inspect.getdoc(thing) or ''}\n```\n"
