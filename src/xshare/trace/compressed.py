"""Trace files whose name ends in .xz: compressed when written, decompressed within limits when read."""

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
MOST_BYTES = 4 << 30  # of decompressed content: a small file can expand to any size
MOST_MEMORY = 256 << 20  # for decompression: four times what xz -9 needs
AT_ONCE = 1 << 20
# Most of a trace is two-byte numbers. LZMA tuned for them makes nano's trace 7 % smaller; any xz can decompress it.
FILTERS = ({"id": lzma.FILTER_LZMA2, "preset": lzma.PRESET_DEFAULT, "lc": 3, "lp": 1, "pb": 1},)


def is_compressed(path: Path) -> bool:
    return path.suffix == SUFFIX


def compress(content: bytes) -> bytes:
    """xz-compressed `content`; the same content gives the same bytes."""
    return lzma.compress(content, format=lzma.FORMAT_XZ, filters=FILTERS)


@contextmanager
def plain_file(path: Path) -> Iterator[Path]:
    """The file itself if it is not compressed; otherwise a decompressed copy, deleted after the block (a memory map of
    it stays valid)."""
    if not is_compressed(path):
        yield path
        return
    with TemporaryDirectory(prefix="xshare-") as folder:
        plain = Path(folder) / path.stem
        try:
            with plain.open("wb") as file:
                file.writelines(_decompressed(path))
        except OSError as error:
            raise TraceError(f"trace {str(path)!r} cannot be unpacked: {error.strerror}") from None
        yield plain


def content_sha256(path: Path) -> str:
    """The checksum of a trace's decompressed content."""
    if not is_compressed(path):
        return sha256(path)
    digest = hashlib.sha256()
    for piece in _decompressed(path):
        digest.update(piece)
    return digest.hexdigest()


def _decompressed(path: Path) -> Iterator[bytes]:
    xz = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MOST_MEMORY)
    size = 0
    with path.open("rb") as file:
        while not xz.eof:
            chunk = file.read(AT_ONCE) if xz.needs_input else b""
            if xz.needs_input and not chunk:
                raise TraceError(f"trace {str(path)!r} is not a whole xz file: it ends too early")
            try:
                piece = xz.decompress(chunk, AT_ONCE)
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
