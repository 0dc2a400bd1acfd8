"""Read whole files or ranges from many threads, with retries and merged neighbouring reads.

Ranges are read with `pread`, so threads share no file position and a forked process can use its
parent's open files. The number of open files is limited.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import itertools
import math
import mmap
import os
import re
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import MAX_RECORD_BYTES, RecordError, too_large
from penstock.core.user_errors import ExplainedError, is_trouble

R = TypeVar("R")
T = TypeVar("T")

_INNERMOST = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_PATTERN = re.compile(r"[*?[{]")
_MOST = 1_000_000  # limit of names that braces expand to
_URL = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)

OBJECT_STORES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss")
"""Schemes of stores that replace a file as a whole and support exclusive creation."""

_PAUSES_S = (0.1, 0.5, 2.0)
# Linux reads at most 2,147,479,552 bytes in a call.
_MOST_BYTES = 1 << 30
_OPEN_FILES = 128
# Reading a gap is cheaper than another read. A run should fit in the core's cache.
_GAP_BYTES = 1 << 14
_RUN_BYTES = 1 << 22


def is_url(path: object) -> bool:
    """Return whether a path is a URL whose files can be listed or read by range."""
    found = _URL.match(path) if isinstance(path, str) else None
    return found is not None and found[1].lower() not in ("tcp", "file")


def is_object_store(url: str) -> bool:
    """Return whether a URL belongs to a store of `OBJECT_STORES`."""
    return url.partition("://")[0].lower() in OBJECT_STORES


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
    is_web = parts.scheme.lower() in ("http", "https")
    if parts.password is not None or (is_web and parts.username) or "=" in parts.query:
        plain = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
        raise ValueError(
            f"{plain}: the URL carries a password or a query, which would be written into logs "
            f"and configs; give credentials by the environment (docs/remote.md) and the plain URL"
        )
    return path.rstrip("/")


def expand_braces(pattern: str) -> list[str]:
    """Expand braces like a shell, ``{000..099}`` and ``{a,b}``, in order.

    Braces without a range or comma stay unchanged. A leading zero pads all numbers of a range.
    """
    parts = _INNERMOST.split(pattern)
    choices = [_choices(part) if n % 2 else [part] for n, part in enumerate(parts)]
    if math.prod(map(len, choices)) > _MOST:
        raise ValueError(f"{pattern!r} stands for more than {_MOST:,} names; give fewer")
    return list(map("".join, itertools.product(*choices)))


def is_pattern(path: str) -> bool:
    """Return whether a path contains wildcards or expandable braces."""
    return glob.has_magic(path) or expand_braces(path) != [path]


def is_there(path: str) -> bool:
    """Return whether this machine has a path, the folder of a pattern, or the file around it.

    URLs and relative paths are not checked and return True.
    """
    if is_url(path) or not os.path.isabs(path) or os.path.exists(path):
        return True
    if is_pattern(path):
        return os.path.isdir(os.path.dirname(_PATTERN.split(path, maxsplit=1)[0]))
    return any(parent.is_file() for parent in Path(path).parents)


def _choices(inner: str) -> list[str]:
    found = _RANGE.fullmatch(inner)
    if found is None:
        return inner.split(",") if "," in inner else [f"{{{inner}}}"]
    first, last = map(int, found.groups())
    if abs(last - first) >= _MOST:
        raise ValueError(f"{{{inner}}} stands for more than {_MOST:,} names; give fewer")
    padded = any(re.match(r"-*0\d", text) for text in found.groups())
    width = max(map(len, found.groups())) if padded else 0
    step = 1 if last >= first else -1
    return [f"{number:0{width}d}" for number in range(first, last + step, step)]


class MissingFile(RecordError):
    """A file that retries cannot find or read; its records are bad."""


def read_file(path: str | bytes, *, root: str, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """Read a whole file; retry temporary errors.

    If `root`, the folder of the data set, is missing too, the disk is gone, not the file.

    Raises:
        MissingFile: The file is missing, not readable or too large; the message is the cause.
        OSError: An error persists through four attempts.
    """
    if is_url(root):
        from penstock.datasets.files.remote import read_url

        return read_url(os.fsdecode(path), root=root, max_bytes=max_bytes)
    return retried(lambda: _read(path, max_bytes), path=path, root=root)


def _read(path: str | bytes, max_bytes: int) -> bytes:
    with open(path, "rb", buffering=0) as file:
        if (size_bytes := os.fstat(file.fileno()).st_size) > max_bytes:
            raise MissingFile(too_large(size_bytes, max_bytes))
        return file.read()


def retried(read: Callable[[], T], *, path: str | bytes, root: str) -> T:
    """Call `read`, and retry temporary storage errors; see `read_file`."""
    pauses_s = iter(_PAUSES_S)
    while True:
        try:
            return read()
        except OSError as error:
            disk_is_gone = error.errno == errno.ENOENT and not os.path.isdir(root)
            if not is_trouble(error) and not disk_is_gone:
                name = os.fsencode(path).decode(errors="backslashreplace")
                raise MissingFile(f"cannot be read: {error.strerror}: {name}") from error
            pause_s = next(pauses_s, None)
            if pause_s is None:
                raise OSError(
                    error.errno,
                    f"{error.strerror}, after {len(_PAUSES_S) + 1} attempts; the storage has "
                    f"trouble on {socket.gethostname()}, resume when it is back",
                    os.fsdecode(path),
                ) from error
            time.sleep(pause_s)


class ChangedFile(ExplainedError):
    """A file changed while a run reads it."""


def check_unchanged(fd: int, mark: tuple[int, int | str], path: str) -> None:
    """Raise ChangedFile unless an open file has this size and mtime in ns."""
    found = os.fstat(fd)
    if (found.st_size, found.st_mtime_ns) != tuple(mark):
        raise ChangedFile(f"{path}: its content was changed since it was looked at; start again")


class RangeFile:
    """A file on a disk or behind a URL, read by ranges and opened on its first read.

    Small consecutive reads should request `piece_bytes`.

    Args:
        path: The file or its URL.
        root: The folder of the data set; see `read_file`. None: the file's folder.
        mark: Size, and mtime in ns or etag. Reading changed content raises. None: no check.
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
                parts, left = [], size_bytes
                while left > 0:
                    at = offset + size_bytes - left
                    part = os.pread(file.fileno(), min(left, _MOST_BYTES), at)
                    if not part:
                        break
                    parts.append(part)
                    left -= len(part)
                if self._mark is not None:
                    check_unchanged(file.fileno(), self._mark, self.path)
                return b"".join(parts)  # join does not copy a single part
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
        raise RecordError(f"the file ends {size_bytes - found:,} bytes too early")


class Opener(Protocol):
    """Opens files by name, such as `datasets.files.data_files.DataFiles`."""

    def open(self, name: str) -> RangeFile:
        """Open a file."""


class OpenFiles:
    """The files of a folder or `Opener` by name; closes the least recently used."""

    def __init__(self, place: str | Opener) -> None:
        self._place = place
        self._files: OrderedDict[str, RangeFile] = OrderedDict()

    def __getitem__(self, name: str) -> RangeFile:
        # Each step is atomic. Two threads may open a file twice, which is harmless.
        file = self._files.pop(name, None)
        if file is None:
            if isinstance(place := self._place, str):
                file = RangeFile(os.path.join(place, name), root=place)
            else:
                file = place.open(name)
        self._files[name] = file
        if len(self._files) > _OPEN_FILES:
            with contextlib.suppress(KeyError):
                self._files.popitem(last=False)
        return file

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenFiles, (self._place,)


class RangeStream(io.RawIOBase):
    """A range file as a file object with its own position, for libraries."""

    def __init__(self, file: RangeFile, size_bytes: int) -> None:
        self._ranges = file
        self._size = size_bytes
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, "a place before the start of the file", self._ranges.path)
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Read the next `size` bytes, fewer at the end."""
        left = max(self._size - self._at, 0)
        value = self._ranges.read(self._at, left if size is None or size < 0 else min(size, left))
        self._at += len(value)
        return value


class Run(NamedTuple):
    """A byte range of one file that covers several requested ranges.

    `parts` has the row in the request, and start and stop within the run, of each.
    """

    file: int
    offset: int
    size_bytes: int
    parts: list[tuple[int, int, int]]


def find_runs(files: NDArray[Any], offsets: NDArray[Any], sizes: NDArray[Any]) -> Iterator[Run]:
    """Sort ranges, integer [n] files, offsets and sizes, by position and merge nearby ones."""
    order = np.lexsort((offsets, files))
    file, offset, end = -1, 0, 0
    parts: list[tuple[int, int, int]] = []
    rows = (column[order].tolist() for column in (files, offsets, sizes))
    for n, next_file, start, size in zip(order.tolist(), *rows, strict=True):
        stop = start + size
        near = start - end <= _GAP_BYTES and stop - offset <= _RUN_BYTES
        if next_file != file or not near:
            if parts:
                yield Run(file, offset, end - offset, parts)
            file, offset, end, parts = next_file, start, start, []
        end = max(end, stop)
        parts.append((n, start - offset, stop - offset))
    if parts:
        yield Run(file, offset, end - offset, parts)
