"""Progress: long work calls an `Advance` as it goes on."""

from __future__ import annotations

from collections.abc import Callable

Advance = Callable[[float], None]  # takes how many items were finished since the last call; may be a fraction


def quiet(done: float) -> None:
    """Show nothing."""
