"""The models in the box: nano, a small trained mixture of experts, and the draft model for it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from xshare.errors import ModelError
from xshare.models.loading import load as load_folder
from xshare.results import sha256

SUMS = "SHA256SUMS"
NAMES = ("nano", "nano-draft")
CHECKOUT = Path(__file__).parents[3] / "nano" / "xshare_nano"  # there only where xshare runs from its sources


def folder(name: str = "nano") -> Path:
    """Where a model in the box lies: a folder for Transformers and vLLM."""
    if name not in NAMES:
        raise ModelError(f"there is no model {name!r} in the box, only {' and '.join(NAMES)}")
    return box() / name


def box() -> Path:
    """Where both models lie: in the checkout that this is, or else in the package xshare-nano."""
    if CHECKOUT.is_dir():
        return CHECKOUT
    found = find_spec("xshare_nano")
    if found is None or found.origin is None:
        raise ModelError("nano is in a package of its own, xshare-nano: pip install ./nano in a checkout of xshare")
    return Path(found.origin).parent


def check_files(path: Path) -> None:
    """Refuse a model whose files are not those that were written with it."""
    sums = path / SUMS
    if not sums.is_file():
        raise ModelError(f"model {str(path)!r} has no {SUMS}: install xshare-nano again")
    for line in sums.read_text().splitlines():
        wanted, name = line.split(maxsplit=1)
        if not (path / name).is_file():
            raise ModelError(f"model {str(path)!r} is incomplete: {name} is missing, install xshare-nano again")
        if sha256(path / name) != wanted:
            raise ModelError(f"model {str(path)!r} is damaged: {name} differs from {SUMS}, install xshare-nano again")


def write_sums(path: Path) -> None:
    """The checksums of a model's files as they are now."""
    names = sorted(file.name for file in path.iterdir() if file.is_file() and file.name not in (SUMS, "README.md"))
    (path / SUMS).write_text("".join(f"{sha256(path / name)}  {name}\n" for name in names))


def load(name: str = "nano", device: str = "cpu") -> tuple[Any, Any]:
    """A model in the box and its tokenizer, checked, in float32, ready to decode."""
    check_files(folder(name))
    return load_folder(folder(name), device, "float32")
