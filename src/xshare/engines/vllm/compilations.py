"""Kernels that Triton compiles while an engine runs, which everything timed meanwhile waits for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any


@contextmanager
def compilations() -> Iterator[list[str]]:
    """The names of the kernels compiled in this process since the start; not those that Triton's cache on disk had."""
    names: list[str] = []
    if find_spec("triton") is None:
        yield names
        return
    from triton import knobs

    outer = knobs.compilation.listener

    def listen(*, src: Any, cache_hit: bool, **rest: Any) -> None:
        if not cache_hit:
            names.append(src.name)
        if outer is not None:
            outer(src=src, cache_hit=cache_hit, **rest)

    knobs.compilation.listener = listen
    try:
        yield names
    finally:
        knobs.compilation.listener = outer
