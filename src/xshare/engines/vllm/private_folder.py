"""A folder in the temporary one that is this user's alone, and small files in it: written whole, read with care.

The temporary folder is everybody's. Whoever comes first may make ours there, with links and pipes in it: the folder
is opened once and looked at, and files are opened relative to what was looked at.
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
NEVER_WAITING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NotOurs(XShareError):
    """A folder or a file that somebody else may have put there."""


@contextmanager
def own_folder(path: Path, make: bool = False) -> Iterator[int]:
    """The folder's descriptor. Refused where it is a link, another user's, or open to others."""
    if make:
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
    try:
        folder = os.open(path, NEVER_WAITING | os.O_DIRECTORY)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):  # what O_NOFOLLOW says of a link, beside O_DIRECTORY or alone
            raise NotOurs(f"{path} is a link or no folder: remove it, or set metrics in xshare to false") from None
        if error.errno == errno.EACCES:
            raise NotOurs(f"{path} is closed to us: remove it, or set metrics in xshare to false") from None
        raise
    try:
        found = os.fstat(folder)
        if found.st_uid != os.getuid():
            raise NotOurs(f"{path} belongs to another user: remove it, or set metrics in xshare to false")
        if (mode := found.st_mode & 0o777) != 0o700:
            raise NotOurs(f"{path} is open to others (mode {mode:04o}): remove it, or make it 0700")
        yield folder
    finally:
        os.close(folder)


def read_own(folder: int, name: str) -> bytes:
    """A regular file of ours, no longer than MOST. A pipe is not waited for, a link not followed."""
    try:
        file = os.open(name, NEVER_WAITING, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:  # a link, a socket, a device that is not there
        raise NotOurs(f"{name} cannot be opened as a file of ours: {error.strerror}") from None
    with os.fdopen(file, "rb", buffering=0) as opened:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise NotOurs(f"{name} is no regular file")
        if found.st_uid != os.getuid():
            raise NotOurs(f"{name} belongs to another user")
        content = b""
        while len(content) <= MOST and (more := opened.read(MOST + 1 - len(content))):
            content += more
        if len(content) > MOST:
            raise NotOurs(f"{name} has more than {MOST} bytes")
        return content


def write_own(folder: int, name: str, content: bytes) -> None:
    """Whole or not at all, in place of whatever has that name: a link itself is replaced, not what it leads to."""
    temporary = f".{name}.{os.getpid()}"
    with suppress(FileNotFoundError):  # of a process that had this number before, and was killed
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
