"""The models in the box: nano, a small trained mixture of experts, and the draft model for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xshare.errors import ModelError
from xshare.models.loading import load as load_folder
from xshare.results import sha256

SUMS = "SHA256SUMS"
NAMES = ("nano", "nano-draft")


def folder(name: str = "nano") -> Path:
    """Where a model in the box lies: a folder for Transformers and vLLM."""
    if name not in NAMES:
        raise ModelError(f"there is no model {name!r} in the box, only {' and '.join(NAMES)}")
    return Path(__file__).parent / name


def check(path: Path) -> None:
    """Refuse a model whose files are not those that were written with it."""
    sums = path / SUMS
    if not sums.is_file():
        raise ModelError(f"model {str(path)!r} has no {SUMS}: install xshare again")
    for line in sums.read_text().splitlines():
        wanted, name = line.split(maxsplit=1)
        if not (path / name).is_file():
            raise ModelError(f"model {str(path)!r} is incomplete: {name} is missing, install xshare again")
        if sha256(path / name) != wanted:
            raise ModelError(f"model {str(path)!r} is damaged: {name} is not what {SUMS} says, install xshare again")


def write_sums(path: Path) -> None:
    """The checksums of a model's files as they are now."""
    names = sorted(file.name for file in path.iterdir() if file.is_file() and file.name not in (SUMS, "README.md"))
    (path / SUMS).write_text("".join(f"{sha256(path / name)}  {name}\n" for name in names))


def load(name: str = "nano", device: str = "cpu") -> tuple[Any, Any]:
    """A model in the box and its tokenizer, checked, in float32, ready to decode."""
    check(folder(name))
    return load_folder(folder(name), device, "float32")
