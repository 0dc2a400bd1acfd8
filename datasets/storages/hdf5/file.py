"""Open an HDF5 file, and explain the errors of the library."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.core.sample import RecordError
from penstock.core.user_errors import is_trouble
from penstock.datasets.files.access import RangeFile, retried

T = TypeVar("T")
_ERRNO = re.compile(r"errno = (\d+)")


def import_h5py() -> Any:
    """Return the module; RecordError if it is missing."""
    try:
        import h5py
    except ImportError:
        raise RecordError(
            "the package h5py is missing (the extra hdf5); run: pip install 'h5py>=3.16'"
        ) from None
    return h5py


class File:
    """An open file; RecordError if it cannot be opened, OSError if a disk error persisted."""

    def __init__(self, path: str, root: str) -> None:
        h5py = import_h5py()
        self.ranges = RangeFile(path, root=root)
        self.h5: Any = self.call(lambda: h5py.File(path, "r"))

    def call(self, ask: Callable[[], T]) -> T:
        """Call the library; retry after transient errors, and explain the others."""

        def explained() -> T:
            try:
                return ask()
            except RecordError:
                raise
            except Exception as error:  # the library raises errors of many types
                raise _explanation(error) from error

        return retried(explained, path=self.ranges.path, root=self.ranges.root)

    def open(self, path: str) -> Any:
        """Open the object at a path."""
        try:
            found = self.h5[path or "/"]
        except (KeyError, RuntimeError, ValueError) as error:
            names = ", ".join(list(self.h5)[:8]) or "none"
            raise RecordError(f"{path!r} cannot be opened; the file has: {names}") from error
        if found.file.id != self.h5.id:
            raise RecordError(f"{path!r} is an external link; copy the data into this file")
        return found


def _explanation(error: Exception) -> Exception:
    """Return the disk error or the `RecordError` that an error of the library means."""
    text = " ".join(str(error).split())
    if getattr(error, "errno", None) == errno.EAGAIN or "already open for write" in text:
        return RecordError("being written, or never closed; close it, or run: h5clear -s")
    if code := _ERRNO.search(text):
        return OSError(int(code[1]), os.strerror(int(code[1])))
    if is_trouble(error) or (isinstance(error, OSError) and error.errno is not None):
        return error
    return RecordError(f"damaged or not supported ({text}); copy the file again")
