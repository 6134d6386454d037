"""This user's private folder inside the temporary folder, with small files: written whole, read with care.

Every user can write to the temporary folder. Somebody else may have made our folder there first, with links and pipes
in it. So the folder is opened once and checked, and files are opened relative to the checked descriptor.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from xshare.errors import XShareError

MOST = 1 << 20  # bytes of a file: figures of 1000 layers take a tenth of it
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NotOurs(XShareError):
    """A folder or a file that somebody else may have put there."""


@contextmanager
def own_folder(path: Path, make: bool = False) -> Iterator[int]:
    """The folder's descriptor. Refuses a link, another user's folder, and one that is open to others."""
    if make:
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
    try:
        folder = os.open(path, READ_FLAGS | os.O_DIRECTORY)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):  # O_NOFOLLOW's error for a link, with and without O_DIRECTORY
            raise NotOurs(f"{path} is a link or no folder: remove it, or set metrics in xshare to false") from None
        if error.errno == errno.EACCES:
            raise NotOurs(f"{path} is closed to us: remove it, or set metrics in xshare to false") from None
        raise
    try:
        status = os.fstat(folder)
        if status.st_uid != os.getuid():
            raise NotOurs(f"{path} belongs to another user: remove it, or set metrics in xshare to false")
        if (mode := status.st_mode & 0o777) != 0o700:
            raise NotOurs(f"{path} is open to others (mode {mode:04o}): remove it, or make it 0700")
        yield folder
    finally:
        os.close(folder)


def read_own(folder: int, name: str) -> bytes:
    """The content of a regular file of ours, at most MOST bytes. It waits for no pipe and follows no link."""
    try:
        file = os.open(name, READ_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:  # a link, a socket, a device that is not there
        raise NotOurs(f"{name} cannot be opened as a file of ours: {error.strerror}") from None
    with os.fdopen(file, "rb", buffering=0) as opened:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise NotOurs(f"{name} is no regular file")
        if status.st_uid != os.getuid():
            raise NotOurs(f"{name} belongs to another user")
        content = b""
        while len(content) <= MOST and (chunk := opened.read(MOST + 1 - len(content))):
            content += chunk
        if len(content) > MOST:
            raise NotOurs(f"{name} has more than {MOST} bytes")
        return content


def write_own(folder: int, name: str, content: bytes) -> None:
    """Write the whole file or nothing, replacing whatever has that name: a link itself, not its target."""
    temporary = f".{name}.{os.getpid()}"
    with suppress(FileNotFoundError):  # left by a killed process with the same id
        os.unlink(temporary, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(content)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
