"""Files in a folder to which what is tested can write: those of a report, of a campaign, a list of known failures.

Such a folder may hold a FIFO, which never answers, a device, which never ends, or a link to a file elsewhere. So a file is
never overwritten: a new one, whose name cannot be guessed, replaces it. A reader sees the whole file or the old one, also
after a crash. Only regular files are read, or appended to.
"""

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

NEW = ".unfinished-"
"""The prefix of a file that is not yet in its place."""
IRREGULAR = "it is not a regular file"
NOT_BLOCKING, NOT_FOLLOWING = getattr(os, "O_NONBLOCK", 0), getattr(os, "O_NOFOLLOW", 0)
"""Not on Windows."""


LIMIT = 1 << 30
"""Bytes of a file that is read whole."""


def read(path: Path, follow: bool = False, limit: int = LIMIT) -> bytes:
    """The content of a regular file; with `follow` it may be a link, for a file that a user names. Raises: OSError, also for
    a file of more than `limit` bytes."""
    with open(path, "rb", opener=_regular(follow)) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size <= limit:
            found = stream.read(size + 1)  # a read of `limit` would take that much memory first
            found += stream.read(limit + 1 - len(found)) if len(found) > size else b""
            if len(found) <= limit:
                return found
    raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))


def write(path: Path, content: str | bytes) -> None:
    """Replace a file, a link or a FIFO by a file. It is on disk when this returns. Raises: OSError."""
    with replaced(path) as stream:
        stream.buffer.write(content.encode() if isinstance(content, str) else content)
    stream.close()


@contextmanager
def replaced(path: Path) -> Iterator[TextIO]:
    """A new file, which replaces what is at `path` at the end of the block. The stream stays open. Raises: OSError."""
    new = path.with_name(f"{NEW}{secrets.token_hex(8)}")
    try:
        stream = new.open("x", encoding="utf-8")
        try:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            os.replace(new, path)
        except BaseException:
            with suppress(OSError):
                stream.close()
            new.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def append(path: Path) -> BinaryIO:
    """A regular file, opened for reading and for writing at its end. Raises: OSError."""
    return open(path, "ab+", opener=_regular())


def sweep(folder: Path) -> None:
    """Remove the files that a killed process left before they were in their place."""
    for left in folder.glob(f"{NEW}*"):
        with suppress(OSError):
            left.unlink()


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to disk, if the system supports it."""
    if os.name != "posix":
        return
    entry = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(entry)
    finally:
        os.close(entry)


def _regular(follow: bool = False) -> Callable[[str, int], int]:
    """How to open a file, if it is a regular one."""

    def opened(path: str, flags: int) -> int:
        try:
            entry = os.open(path, flags | NOT_BLOCKING | (0 if follow else NOT_FOLLOWING), 0o666)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):  # a link, a socket, a folder
                raise OSError(errno.EINVAL, IRREGULAR, path) from error
            raise
        if not stat.S_ISREG(os.fstat(entry).st_mode):
            os.close(entry)
            raise OSError(errno.EINVAL, IRREGULAR, path)
        return entry

    return opened
