"""Writing files whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from xshare.errors import XShareError


def check_writable(path: Path) -> None:
    """Refuse an output path before the work, not after it."""
    if path.is_dir():
        raise XShareError(f"output {str(path)!r} is a folder, expected a file")
    if path.exists() and not path.is_file():
        raise XShareError(f"output {str(path)!r} is a device or a pipe, expected a file: it would be replaced")
    if not path.parent.is_dir():
        raise XShareError(f"output {str(path)!r}: the folder {str(path.parent)!r} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise XShareError(f"output {str(path)!r}: the folder {str(path.parent)!r} cannot be written to")


def check_apart(outputs: Sequence[Path | None], inputs: Sequence[Path | None] = ()) -> None:
    """Refuse an output that would replace what is read, or another output."""
    taken = {path.resolve(): "what is read" for path in inputs if path is not None}
    for path in outputs:
        if path is not None:
            if what := taken.get(path.resolve()):
                raise XShareError(f"output {str(path)!r} would replace {what}: name another file")
            taken[path.resolve()] = "another output"


def read_lines(path: Path, what: str, holds: str, error: type[XShareError]) -> list[tuple[int, str]]:
    """The lines of a text file that are not empty, stripped, with their numbers. `what` it is and what it `holds` are
    named where it cannot be read."""
    if not path.is_file():
        raise error(f"{what} {str(path)!r} does not exist or is not a file")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise error(f"{what} {str(path)!r} is not text in UTF-8") from None
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise error(f"{what} {str(path)!r} holds no {holds}")
    return numbered


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place if the block succeeds and vanishes if it does not."""
    check_writable(path)
    path = path.resolve()  # a link stays one
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")  # the suffix tells plotters the format
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
