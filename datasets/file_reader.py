"""Reading a file that may be gone, forbidden, or on a disk that has trouble for a moment."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PASSING = frozenset(
    getattr(errno, name)
    for name in (
        "EIO EAGAIN ESTALE ETIMEDOUT EREMOTEIO EHOSTDOWN EHOSTUNREACH ENETDOWN ENETUNREACH "
        "ENETRESET ECONNRESET ECONNREFUSED ECONNABORTED ENOTCONN EPIPE EBUSY ENOMEM EMFILE ENFILE"
    ).split()
    if hasattr(errno, name)
)
_PAUSES_S = (0.1, 0.5, 2.0)
_CHUNK_BYTES = 1 << 20


class MissingFile(Exception):
    """A file that will not be there on another try either."""


def read_file(path: str | bytes, *, root: str, size_bytes: int | None = None) -> bytes:
    """Read a whole file; passing trouble is retried.

    Args:
        path: The file.
        root: The folder of the data set. If it is gone too, the disk is gone and not the file.
        size_bytes: How large it was when it was last looked at, which spares the system calls that
            ask for it; all of it is read if it has grown.

    Raises:
        MissingFile: The file is not there or may not be read; the message is the cause.
        OSError: Trouble that four attempts, over some seconds, did not get past.
    """
    return retried(lambda: _read(path, size_bytes), path=path, root=root)


def _read(path: str | bytes, size_bytes: int | None) -> bytes:
    """Read a file: three system calls where its size is known, half of what `open` makes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if size_bytes is None:
            size_bytes = os.fstat(descriptor).st_size
        # One byte more than there should be: that it does not come says that this is the end.
        content = os.read(descriptor, size_bytes + 1)
        if len(content) == size_bytes:
            return content
        chunks = [content]
        while chunks[-1]:
            chunks.append(os.read(descriptor, _CHUNK_BYTES))
        return b"".join(chunks)
    finally:
        os.close(descriptor)


def retried(read: Callable[[], T], *, path: str | bytes, root: str) -> T:
    """Call `read`, and again if the storage has trouble that may pass; see `read_file`."""
    for pause_s in (*_PAUSES_S, None):
        try:
            return read()
        except OSError as error:
            passing = error.errno in _PASSING
            if error.errno == errno.ENOENT and not os.path.isdir(root):
                passing = True
            if not passing:
                raise MissingFile(f"cannot be read: {error.strerror}") from error
            if pause_s is None:
                raise OSError(
                    error.errno,
                    f"{error.strerror}, after {len(_PAUSES_S) + 1} attempts; the storage has "
                    f"trouble, resume when it is back",
                    os.fsdecode(path),
                ) from error
            time.sleep(pause_s)
    raise AssertionError("unreachable")
