"""Read whole files or ranges from many threads, with retries and merged neighbouring reads.

`pread` keeps no file position, so threads and forked processes can share open files.
"""

from __future__ import annotations

import errno
import glob
import io
import itertools
import mmap
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import MAX_RECORD_BYTES, RecordError, too_large
from penstock.core.user_errors import ExplainedError, is_trouble

R = TypeVar("R")
T = TypeVar("T")

_INNERMOST = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_URL = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)

_PAUSES_S = (0.1, 0.5, 2.0)
_MOST_BYTES = 1 << 30  # of one read; Linux allows twice as many
_OPEN_FILES = 128
# Reading a gap is cheaper than another read. A run should fit in the core's cache.
_GAP_BYTES = 1 << 14
_RUN_BYTES = 1 << 22


def is_url(path: object) -> bool:
    """Return whether a path is a URL whose files can be listed or read by range."""
    found = _URL.match(path) if isinstance(path, str) else None
    return found is not None and found[1].lower() not in ("tcp", "file")


def is_object_store(url: str) -> bool:
    """Return whether a URL belongs to a store to which files can be written."""
    return is_url(url) and not url.lower().startswith("http")


def read_each(read: Callable[[T], R], each: Sequence[T], *, place: str) -> Iterable[R]:
    """Call `read` for each item: in parallel if `place` is a URL, otherwise in turn."""
    if not is_url(place):
        return map(read, each)
    from penstock.datasets.files.clients import side_by_side

    return side_by_side(read, each)


def absolute_path(path: str) -> str:
    """Make a path absolute; return a URL without its trailing slash."""
    if not is_url(path):
        return os.path.abspath(path)
    parts = urlsplit(path)
    if parts.password is not None or "=" in parts.query:
        plain = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
        raise ValueError(
            f"{plain}: the URL carries a password or a query; give the plain URL, and credentials "
            f"by the environment (docs/remote.md)"
        )
    return path.rstrip("/")


def expand_braces(pattern: str) -> list[str]:
    """Expand ``{000..099}`` and ``{a,b}`` in order; a leading zero pads all numbers of a range."""
    parts = _INNERMOST.split(pattern)
    choices = [_choices(part) if n % 2 else [part] for n, part in enumerate(parts)]
    return list(map("".join, itertools.product(*choices)))


def _choices(inner: str) -> list[str]:
    if (found := _RANGE.fullmatch(inner)) is None:
        return inner.split(",") if "," in inner else [f"{{{inner}}}"]
    first, last = map(int, found.groups())
    width, step = len(found[1]) if found[1].startswith("0") else 0, 1 if first <= last else -1
    return [f"{number:0{width}d}" for number in range(first, last + step, step)]


def is_pattern(path: str) -> bool:
    """Return whether a path contains wildcards or expandable braces."""
    return glob.has_magic(path) or expand_braces(path) != [path]


def is_there(path: str) -> bool:
    """Return whether this machine has a path, or a file around it; True for other names."""
    if is_url(path) or is_pattern(path) or not os.path.isabs(path):
        return True
    return os.path.exists(path) or any(parent.is_file() for parent in Path(path).parents)


class MissingFile(RecordError):
    """A file that retries cannot find or read; its records are bad."""


def read_file(path: str | bytes, *, root: str, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """Read a whole file; retry temporary errors.

    MissingFile: it is missing, not readable or too large. OSError: trouble of the storage persists,
    or `root`, the folder of the data set, is missing too.
    """
    if is_url(root):
        from penstock.datasets.files.remote import read_url

        return read_url(os.fsdecode(path), root=root, max_bytes=max_bytes)

    def read() -> bytes:
        with open(path, "rb", buffering=0) as file:
            if (size_bytes := os.fstat(file.fileno()).st_size) > max_bytes:
                raise MissingFile(too_large(size_bytes, max_bytes))
            return file.read()

    return retried(read, path=path, root=root)


def retried(read: Callable[[], T], *, path: str | bytes, root: str) -> T:
    """Call `read`, and retry temporary storage errors; see `read_file`."""
    for pause_s in (*_PAUSES_S, None):
        try:
            return read()
        except OSError as error:
            disk_is_gone = error.errno == errno.ENOENT and not os.path.isdir(root)
            if not is_trouble(error) and not disk_is_gone:
                name = os.fsencode(path).decode(errors="backslashreplace")
                raise MissingFile(f"cannot be read: {error.strerror}: {name}") from error
            if pause_s is None:
                said = (
                    f"{error.strerror}, after {len(_PAUSES_S) + 1} attempts; the storage has "
                    f"trouble on {socket.gethostname()}, resume when it is back"
                )
                raise OSError(error.errno, said, os.fsdecode(path)) from error
            time.sleep(pause_s)
    raise AssertionError("the last attempt returns or raises")


class ChangedFile(ExplainedError):
    """A file changed while a run reads it."""


def check_unchanged(fd: int, mark: tuple[int, int | str], path: str) -> None:
    """Raise ChangedFile unless an open file has this size and mtime in ns."""
    found = os.fstat(fd)
    if (found.st_size, found.st_mtime_ns) != tuple(mark):
        raise ChangedFile(f"{path}: its content was changed since it was looked at; start again")


class RangeFile:
    """A file on a disk or behind a URL, read by ranges and opened on its first read.

    Small consecutive reads should request `piece_bytes`. For `root` see `read_file`. `mark` is the
    size, and mtime in ns or etag: reading changed content raises.
    """

    def __init__(
        self, path: str, *, root: str | None = None, mark: tuple[int, int | str] | None = None
    ) -> None:
        self.path = path
        self.root = root or path.rpartition("/")[0]
        self._is_far = is_url(path)
        self.piece_bytes = 8 << 20 if self._is_far else 1 << 14
        self._mark = mark
        self._file: Any = None
        self._memory: mmap.mmap | None = None

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Read the bytes of a range; RecordError if the file is too short or not readable."""
        value = self.read_upto(offset, size_bytes)
        _check_length(len(value), size_bytes)
        return value

    def view(self, offset: int, size_bytes: int) -> NDArray[np.uint8]:
        """Map a range, uint8 [size_bytes], read-only; read it if the file is remote."""
        if self._is_far:
            return np.frombuffer(self.read(offset, size_bytes), np.uint8)
        file = self._open()
        # Do not touch pages past the end of a truncated file.
        left = os.fstat(file.fileno()).st_size - offset
        _check_length(min(left, size_bytes), size_bytes)
        if self._memory is None:
            self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(self._memory, np.uint8, size_bytes, offset)

    def read_upto(self, offset: int, size_bytes: int) -> bytes:
        """Read the bytes of a range, up to the end; MissingFile if the file is not readable."""
        if self._is_far:
            from penstock.datasets.files.remote import read_range

            mark = None if self._mark is None else str(self._mark[1])
            return read_range(self.path, self.root, offset, size_bytes, mark)

        def read() -> bytes:
            file = self._open()  # this reference keeps it open if another thread reopens it
            try:
                fd, value, at, stop = file.fileno(), b"", offset, offset + size_bytes
                while at < stop and (piece := os.pread(fd, min(stop - at, _MOST_BYTES), at)):
                    value += piece
                    at += len(piece)
                if self._mark is not None:
                    check_unchanged(file.fileno(), self._mark, self.path)
                return value
            except OSError:
                # A stale handle stays stale: reopen for the next attempt.
                self._file = None
                raise

        return retried(read, path=self.path, root=self.root)

    def close(self) -> None:
        """Close the file; the next read reopens it."""
        self._file = None  # a read in another thread keeps its reference

    def _open(self) -> Any:
        file = self._file
        if file is None:
            file = self._file = open(self.path, "rb", buffering=0)
        return file

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(RangeFile, root=self.root, mark=self._mark), (self.path,)


def _check_length(found: int, size_bytes: int) -> None:
    if found != size_bytes:
        raise RecordError(f"the file ends {size_bytes - found:,} bytes too early; copy it again")


class OpenFiles:
    """Files by name, opened by the method ``open`` of `place`; closes the least recently used."""

    def __init__(self, place: Any) -> None:
        self._place = place
        self._open: Callable[[str], RangeFile] = lru_cache(_OPEN_FILES)(place.open)

    def __getitem__(self, name: str) -> RangeFile:
        return self._open(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenFiles, (self._place,)


class RangeStream(io.RawIOBase):
    """A range file as a file object with its own position, for libraries."""

    def __init__(self, file: RangeFile, size_bytes: int) -> None:
        self._ranges = file
        self._size = size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, "a place before the start of the file", self._ranges.path)
        self._at = start + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._size - self._at, 0)
        value = self._ranges.read(self._at, left if size is None or size < 0 else min(size, left))
        self._at += len(value)
        return value


@dataclass(slots=True)
class Run:
    """A range of a file; `parts` have row, start and stop within it of the requested ranges."""

    file: int
    offset: int
    size_bytes: int
    parts: list[tuple[int, int, int]]


def find_runs(files: NDArray[Any], offsets: NDArray[Any], sizes: NDArray[Any]) -> list[Run]:
    """Sort ranges, integer [n] files, offsets and sizes, by position and merge nearby ones."""
    order = np.lexsort((offsets, files))
    rows = (column[order].tolist() for column in (files, offsets, sizes))
    runs = [Run(-1, 0, 0, [])]
    for n, file, offset, size_bytes in zip(order.tolist(), *rows, strict=True):
        run = runs[-1]
        start = offset - run.offset
        stop = start + size_bytes
        if file != run.file or start > run.size_bytes + _GAP_BYTES or stop > _RUN_BYTES:
            runs.append(Run(file, offset, size_bytes, [(n, 0, size_bytes)]))
            continue
        run.parts.append((n, start, stop))
        if stop > run.size_bytes:
            run.size_bytes = stop
    return runs[1:]
