"""Open an HDF5 file, and explain the errors of the library."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from penstock.core.sample import RecordError
from penstock.core.user_errors import is_trouble
from penstock.datasets.files.access import MissingFile, RangeFile, retried
from penstock.datasets.files.group_cache import GroupCache

T = TypeVar("T")
_ERRNO = re.compile(r"errno = (\d+)")
_REASON = re.compile(r"\((.*)\)")


DAMAGE = (RecordError, MissingFile)


class File:
    """An open file.

    Args:
        chunks: Cache of decoded chunks.

    Raises:
        RecordError, MissingFile: The file cannot be opened; the message is the cause.
        OSError: A disk error persisted.
    """

    def __init__(self, path: str, root: str, chunks: GroupCache) -> None:
        need_h5py()
        import h5py

        self.path = path
        self.chunks = chunks
        self.shared = RangeFile(path, root=root)
        self.h5: Any = self.asked(lambda: h5py.File(path, "r"))
        address = f"<u{self.h5.id.get_create_plist().get_sizes()[0]}"
        # A row of variable length: its length, its collection in the heap, its object in that.
        self.reference = np.dtype([("length", "<u4"), ("address", address), ("object", "<u4")])

    def asked(self, ask: Callable[[], T]) -> T:
        """Call the library; retry after transient errors."""

        def explaining() -> T:
            with explained():
                return ask()

        return retried(explaining, path=self.path, root=self.shared.root)


def need_h5py() -> None:
    """Raise `RecordError` if h5py is missing or too old."""
    try:
        import h5py
    except ImportError:
        raise RecordError(
            "the package h5py is missing (the extra hdf5); run: pip install 'h5py>=3.16'"
        ) from None
    if h5py.version.version_tuple[:2] < (
        3,
        16,
    ):  # the first with HDF5 2.0, which survives damaged files
        raise RecordError("h5py is too old; run: pip install 'h5py>=3.16'")


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raise errors of the library as `RecordError`, and disk errors as OSError."""
    try:
        yield
    except DAMAGE:
        raise
    except Exception as error:  # the library raises errors of many types
        text = " ".join(str(error).split())
        if getattr(error, "errno", None) == errno.EAGAIN or "already open for write" in text:
            raise RecordError(
                "being written, or never closed; close it, or run: h5clear -s"
            ) from error
        if code := _ERRNO.search(text):
            raise OSError(int(code[1]), os.strerror(int(code[1]))) from error
        if is_trouble(error) or (isinstance(error, OSError) and error.errno is not None):
            raise
        reason = _REASON.search(text)
        raise RecordError(
            f"damaged or not supported ({reason[1] if reason else text}); copy the file again"
        ) from error


def follow(group: Any, path: str) -> Any:
    """Open the object at a path below an ``h5py.Group``."""
    try:
        found = group[path] if path else group
    except (KeyError, RuntimeError, ValueError) as error:
        names = ", ".join(itertools.islice(group, 8)) or "none"
        raise RecordError(f"{path!r} cannot be opened; available: {names}") from error
    if found.file.id != group.file.id:
        raise RecordError(f"{path!r} is an external link; copy the data into this file")
    return found
