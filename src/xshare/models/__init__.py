"""The bundled models: nano, a small trained mixture of experts, and its draft model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from xshare.errors import ModelError
from xshare.models.loading import load as load_folder
from xshare.results import sha256

SUMS = "SHA256SUMS"
NAMES = ("nano", "nano-draft")
CHECKOUT = Path(__file__).parents[3] / "nano" / "xshare_nano"  # exists only if xshare runs from its sources


def folder(name: str = "nano") -> Path:
    """The folder of a bundled model, as Transformers and vLLM load it."""
    if name not in NAMES:
        raise ModelError(f"there is no model {name!r} in the box, only {' and '.join(NAMES)}")
    return box() / name


def box() -> Path:
    """The folder of both models: in this checkout, or else in the package xshare-nano."""
    if CHECKOUT.is_dir():
        return CHECKOUT
    spec = find_spec("xshare_nano")
    if spec is None or spec.origin is None:
        raise ModelError("nano is in a package of its own, xshare-nano: pip install ./nano in a checkout of xshare")
    return Path(spec.origin).parent


def check_files(path: Path) -> None:
    """Refuse a model whose files do not match their checksums."""
    sums = path / SUMS
    if not sums.is_file():
        raise ModelError(f"model {str(path)!r} has no {SUMS}: install xshare-nano again")
    for line in sums.read_text().splitlines():
        checksum, name = line.split(maxsplit=1)
        if not (path / name).is_file():
            raise ModelError(f"model {str(path)!r} is incomplete: {name} is missing, install xshare-nano again")
        if sha256(path / name) != checksum:
            raise ModelError(f"model {str(path)!r} is damaged: {name} differs from {SUMS}, install xshare-nano again")


def write_sums(path: Path) -> None:
    """Write the checksums of a model's files."""
    names = sorted(file.name for file in path.iterdir() if file.is_file() and file.name not in (SUMS, "README.md"))
    (path / SUMS).write_text("".join(f"{sha256(path / name)}  {name}\n" for name in names))


def load(name: str = "nano", device: str = "cpu") -> tuple[Any, Any]:
    """A bundled model in float32 and its tokenizer, checked against their checksums."""
    check_files(folder(name))
    return load_folder(folder(name), device, "float32")
