"""Whoever works long says how far it is."""

from __future__ import annotations

from collections.abc import Callable

Advance = Callable[[float], None]  # is told how many more are done, or which part of one


def quiet(done: float) -> None:
    pass
