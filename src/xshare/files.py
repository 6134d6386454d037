"""Write files whole or not at all, and read files that a user names; any failure is an error of one sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from xshare.errors import XShareError, short_repr

LONGEST = 300  # characters of a path in an error message


def quoted_path(path: Path) -> str:
    """A path as error messages show it: quoted, and cut where it is too long."""
    return short_repr(str(path), LONGEST)


def is_file(path: Path) -> bool:
    """Whether a path is a regular file; False for one that is too long, or in a folder without access."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def read_whole(path: Path, what: str, most: int, error: type[XShareError]) -> bytes:
    """The bytes of a regular file of at most `most` bytes. An error message calls the file `what`."""
    if not is_file(path):
        raise error(f"{what} {quoted_path(path)} does not exist or is not a file")
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as failure:
        raise error(f"{what} {quoted_path(path)} cannot be read: {failure.strerror}") from None
    if len(content) > most:
        raise error(f"{what} {quoted_path(path)} is larger than {most >> 20} MiB, which none is")
    return content


def check_writable(path: Path) -> None:
    """Refuse an output path that cannot be written, before the work rather than after it."""
    try:
        path.exists()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise XShareError(f"output {quoted_path(path)} cannot be written: {reason}") from None
    if path.is_dir():
        raise XShareError(f"output {str(path)!r} is a folder, expected a file")
    if path.exists() and not path.is_file():
        raise XShareError(f"output {str(path)!r} is a device or a pipe, expected a file: it would be replaced")
    if not path.parent.is_dir():
        raise XShareError(f"output {str(path)!r}: the folder {str(path.parent)!r} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise XShareError(f"output {str(path)!r}: the folder {str(path.parent)!r} cannot be written to")


def check_distinct_paths(outputs: Sequence[Path | None], inputs: Sequence[Path | None] = ()) -> None:
    """Refuse an output that would replace an input or another output."""
    used = {path.resolve(): "what is read" for path in inputs if path is not None}
    for path in outputs:
        if path is not None:
            if what := used.get(path.resolve()):
                raise XShareError(f"output {str(path)!r} would replace {what}: name another file")
            used[path.resolve()] = "another output"


def read_lines(path: Path, what: str, holds: str, error: type[XShareError]) -> list[tuple[int, str]]:
    """(number, line) for the lines of a text file that are not empty, stripped. An error message calls the file `what`
    and its content `holds`."""
    if not is_file(path):
        raise error(f"{what} {quoted_path(path)} does not exist or is not a file")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise error(f"{what} {str(path)!r} is not text in UTF-8") from None
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise error(f"{what} {str(path)!r} holds no {holds}")
    return numbered


def parse_json(line: str, where: str, error: type[XShareError]) -> Any:
    """The value that a line of JSON holds. An error message calls the line `where`."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as cause:
        raise error(f"{where} is not JSON: {cause}") from None


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, which it replaces if the block succeeds; if the block fails, it is removed."""
    check_writable(path)
    path = path.resolve()  # a link is kept: its target is replaced
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")  # the suffix tells plotters the format
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
