"""HTML as nested calls. Text is escaped unless it is `Html` already, so that nothing from a file becomes markup."""

from __future__ import annotations

from html import escape


class Html(str):
    """Text that is markup."""


EMPTY = Html()
VOID = {"meta", "link"}  # elements without content


def tag(element: str, /, *children: str, **attributes: str | bool | None) -> Html:
    """An element. `class_` is class, `aria_label` is aria-label; True is an attribute without value, None is none."""
    markup = "".join(
        f" {key.strip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{element}{markup}>" + ("" if element in VOID else f"{join(*children)}</{element}>"))


def join(*children: str) -> Html:
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))
