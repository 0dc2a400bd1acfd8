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


class MissingFile(Exception):
    """A file that will not be there on another try either."""


def read_file(path: str | bytes, *, root: str) -> bytes:
    """Read a whole file; passing trouble is retried.

    Args:
        path: The file.
        root: The folder of the data set. If it is gone too, the disk is gone and not the file.

    Raises:
        MissingFile: The file is not there or may not be read; the message is the cause.
        OSError: Trouble that four attempts, over some seconds, did not get past.
    """

    def read() -> bytes:
        with open(path, "rb", buffering=0) as file:
            return file.readall()

    return retried(read, path=path, root=root)


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
