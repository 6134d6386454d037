"""Fields of a model and values of an option in words, as tables, for the pages of the reference."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from xshare.policy import MOST, Policy

MADE = "Made from the code by `make docs`: change the code, not this page.\n"


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(titles)
    lines = [titles, ["---"] * len(titles), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def fields_table(model: type[BaseModel], prefix: str = "", leave_out: tuple[str, ...] = ()) -> str:
    rows = []
    for name, field in model.model_fields.items():
        if name not in leave_out:
            start = "required" if field.default is PydanticUndefined else shown(field.default)
            rows.append((f"`{prefix}{name}`", field_values(field), start, field.description or ""))
    return table(["field", "value", "default", "meaning"], rows)


def field_values(field: Any) -> str:
    kind = without_none(field.annotation)
    low = next((m.ge for m in field.metadata if hasattr(m, "ge")), None)
    above = next((m.gt for m in field.metadata if hasattr(m, "gt")), None)
    high = next((m.le for m in field.metadata if hasattr(m, "le")), None)
    high = None if high == MOST else high
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not Policy:
        return "object"
    name = {int: "whole number", float: "number", str: "text", bool: "true or false", Policy: "text"}.get(kind)
    if name is None:
        name = {list: "list", dict: "object"}[get_origin(kind)]
    if above is not None:
        return f"{name} above {above:g}" + (f", {high:g} at most" if high is not None else "")
    return name + limits(low, high)


def shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        return "below"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def without_none(kind: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        kinds = [part for part in get_args(kind) if part is not type(None)]
        return kinds[0] if len(kinds) == 1 else kind
    return kind


def limits(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f", {low:g} to {high:g}"
    return f", {low:g} or more" if low is not None else f", {high:g} at most" if high is not None else ""
