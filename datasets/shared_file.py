"""Files that threads read from, each at its own place; and no more of them open than a process may.

A place is read with `pread`, so there is no position to share, and a forked process may go on with
what its parent opened.
"""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import os
from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.file_reader import retried

# Linux reads at most 2,147,479,552 bytes in a call.
_MOST_BYTES = 1 << 30
_OPEN_FILES = 128


class EndOfFile(Exception):
    """A place lies behind the end of its file; the message is the cause."""


class SharedFile:
    """A file, opened on its first read.

    Args:
        path: The file.
        root: The folder of the data set; see `datasets.file_reader.read_file`.
    """

    def __init__(self, path: str, *, root: str) -> None:
        self.path = path
        self.root = root
        self._file: Any = None
        self._memory: mmap.mmap | None = None

    def read(self, offset: int, size_bytes: int) -> bytes:
        """The bytes at a place.

        Raises:
            EndOfFile: There are fewer.
            datasets.file_reader.MissingFile: The file is gone, or may not be read.
            OSError: Trouble that did not pass.
        """
        value = self.read_upto(offset, size_bytes)
        _check_length(len(value), size_bytes)
        return value

    def view(self, offset: int, size_bytes: int) -> NDArray[np.uint8]:
        """The bytes at a place, uint8 [size_bytes], read-only, mapped from the file.

        Raises:
            EndOfFile: There are fewer.
            OSError: It cannot be opened.
        """
        file = self._open()
        # Pages behind the end of a file that became shorter must not be touched.
        left = os.fstat(file.fileno()).st_size - offset
        _check_length(min(left, size_bytes), size_bytes)
        if self._memory is None:
            self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(self._memory, np.uint8, size_bytes, offset)

    def read_upto(self, offset: int, size_bytes: int) -> bytes:
        """The bytes at a place, as many of them as there are."""

        def read() -> bytes:
            file = self._open()  # held, so that no other thread's reopening closes it meanwhile
            try:
                part = os.pread(file.fileno(), min(size_bytes, _MOST_BYTES), offset)
                if len(part) == size_bytes or not part:
                    return part
                parts = [part]
                while part:
                    at = sum(map(len, parts))
                    part = os.pread(file.fileno(), min(size_bytes - at, _MOST_BYTES), offset + at)
                    parts.append(part)
                return b"".join(parts)
            except OSError:
                # A stale handle stays stale: the next attempt has a new one.
                self._file = None
                raise

        return retried(read, path=self.path, root=self.root)

    def _open(self) -> Any:
        file = self._file
        if file is None:
            file = self._file = open(self.path, "rb", buffering=0)
        return file

    def __reduce__(self) -> tuple[Any, ...]:
        return _shared_file, (self.path, self.root)


def _check_length(found: int, size_bytes: int) -> None:
    if found != size_bytes:
        raise EndOfFile(f"the file ends {size_bytes - found:,} bytes too early")


def _shared_file(path: str, root: str) -> SharedFile:
    return SharedFile(path, root=root)


class OpenFiles:
    """The files of a data set by name; those not used for longest are closed.

    Args:
        root: The folder that the names are relative to.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._files: OrderedDict[str, SharedFile] = OrderedDict()

    def __getitem__(self, name: str) -> SharedFile:
        # Each step is atomic by itself; two threads that meet open a file twice, and lose nothing.
        file = self._files.pop(name, None)
        if file is None:
            file = SharedFile(os.path.join(self.root, name), root=self.root)
        self._files[name] = file
        if len(self._files) > _OPEN_FILES:
            with contextlib.suppress(KeyError):
                self._files.popitem(last=False)
        return file

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenFiles, (self.root,)


class FileView(io.RawIOBase):
    """A shared file as a file object with a position of its own, for libraries that want one.

    Args:
        file: The file.
        size_bytes: Its size.
    """

    def __init__(self, file: SharedFile, size_bytes: int) -> None:
        self._shared = file
        self._size = size_bytes
        self._at = 0

    def readable(self) -> bool:
        """It can be read."""
        return True

    def seekable(self) -> bool:
        """It can be read anywhere."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, "a place before the start of the file", self._shared.path)
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        """The position."""
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """The next `size` bytes; fewer at the end."""
        left = max(self._size - self._at, 0)
        value = self._shared.read(self._at, left if size is None or size < 0 else min(size, left))
        self._at += len(value)
        return value
