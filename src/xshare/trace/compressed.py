"""A trace file whose name ends in .xz: compressed on its way to the disk, unpacked in bounds on its way back."""

from __future__ import annotations

import hashlib
import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from xshare.errors import TraceError
from xshare.results import sha256

SUFFIX = ".xz"
MOST_BYTES = 4 << 30  # that a file may unpack to: a small file can claim any number
MOST_MEMORY = 256 << 20  # that unpacking may take: four times what xz -9 asks for
AT_ONCE = 1 << 20
# Most of a trace is numbers of two bytes: told so, LZMA makes nano's 7 % smaller. Any xz unpacks it.
FILTERS = ({"id": lzma.FILTER_LZMA2, "preset": lzma.PRESET_DEFAULT, "lc": 3, "lp": 1, "pb": 1},)


def is_compressed(path: Path) -> bool:
    return path.suffix == SUFFIX


def compress(content: bytes) -> bytes:
    """The same bytes for the same content."""
    return lzma.compress(content, format=lzma.FORMAT_XZ, filters=FILTERS)


@contextmanager
def plain_file(path: Path) -> Iterator[Path]:
    """The file itself, or what it unpacks to for as long as the block lasts (and whoever has mapped it)."""
    if not is_compressed(path):
        yield path
        return
    with TemporaryDirectory(prefix="xshare-") as folder:
        plain = Path(folder) / path.stem
        try:
            with plain.open("wb") as file:
                file.writelines(_unpacked(path))
        except OSError as error:
            raise TraceError(f"trace {str(path)!r} cannot be unpacked: {error.strerror}") from None
        yield plain


def content_sha256(path: Path) -> str:
    """Of what a trace holds, compressed or not."""
    if not is_compressed(path):
        return sha256(path)
    digest = hashlib.sha256()
    for piece in _unpacked(path):
        digest.update(piece)
    return digest.hexdigest()


def _unpacked(path: Path) -> Iterator[bytes]:
    xz = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MOST_MEMORY)
    size = 0
    with path.open("rb") as file:
        while not xz.eof:
            more = file.read(AT_ONCE) if xz.needs_input else b""
            if xz.needs_input and not more:
                raise TraceError(f"trace {str(path)!r} is not a whole xz file: it ends too early")
            try:
                piece = xz.decompress(more, AT_ONCE)
            except lzma.LZMAError as error:
                raise TraceError(f"trace {str(path)!r} cannot be unpacked by xz: {str(error).lower()}") from None
            size += len(piece)
            if size > MOST_BYTES:
                raise TraceError(
                    f"trace {str(path)!r} unpacks to more than {MOST_BYTES / 2**30:g} GiB: if you trust it, "
                    "unpack it by xz -d and name the plain file"
                )
            yield piece
        if xz.unused_data or file.read(1):
            raise TraceError(f"trace {str(path)!r} is not one xz file: something follows its end")
