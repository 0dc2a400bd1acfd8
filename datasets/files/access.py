"""Read files whole or at places, from many threads; retry what may pass, join what lies together.

A place is read with `pread`, so there is no position to share, and a forked process may go on with
what its parent opened. No more files are open than a process may have.
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
_MOST = 1_000_000  # names that braces stand for
_URL = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)

OBJECT_STORES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss")
"""Schemes of stores that replace a file as a whole, and let one process alone make it."""

_PAUSES_S = (0.1, 0.5, 2.0)
# Linux reads at most 2,147,479,552 bytes in a call.
_MOST_BYTES = 1 << 30
_OPEN_FILES = 128
# A gap costs less than another read; and what is read at once stays in the cache of the core.
_GAP_BYTES = 1 << 14
_RUN_BYTES = 1 << 22


def is_url(path: object) -> bool:
    """Whether a path is a URL whose files can be listed or read by place."""
    found = _URL.match(path) if isinstance(path, str) else None
    return found is not None and found[1].lower() not in ("tcp", "file")


def is_object_store(url: str) -> bool:
    """Whether a URL is of a store whose files are replaced as a whole, and claimed by one."""
    return url.partition("://")[0].lower() in OBJECT_STORES


def read_each(read: Callable[[T], R], each: Sequence[T], *, place: str) -> Iterable[R]:
    """Call a function for each thing: side by side where they lie behind a URL, else in turn."""
    if not is_url(place):
        return map(read, each)
    from penstock.datasets.files.clients import side_by_side

    return side_by_side(read, each)


def absolute_path(path: str) -> str:
    """Make a path absolute; a URL is already.

    Raises:
        ValueError: It is a URL with a password, a token or a query, which would stand in logs.
    """
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
    """Expand braces as shells do, ``{000..099}`` and ``{a,b}``: every text, in order.

    Braces that hold neither a range of numbers nor a comma stand for themselves. Numbers of a
    range are as wide as its wider end where one of them begins with a zero.

    Raises:
        ValueError: There are more than a million.
    """
    parts = _INNERMOST.split(pattern)
    choices = [_choices(part) if n % 2 else [part] for n, part in enumerate(parts)]
    if math.prod(map(len, choices)) > _MOST:
        raise ValueError(f"{pattern!r} stands for more than {_MOST:,} names; give fewer")
    return list(map("".join, itertools.product(*choices)))


def is_pattern(path: str) -> bool:
    """Whether a path holds wildcards, or braces that stand for something."""
    return glob.has_magic(path) or expand_braces(path) != [path]


def is_there(path: str) -> bool:
    """Whether this machine sees a path; of a pattern, its folder. What is in a file is in there.

    A URL is not asked for, and neither is what is no absolute path.
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
    """A file that no retry finds; its records are bad, like damaged ones."""


def read_file(path: str | bytes, *, root: str, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """Read a whole file; passing trouble is retried.

    Args:
        path: The file, or its URL.
        root: The folder of the data set. If it is gone too, the disk is gone and not the file.
        max_bytes: What it may have.

    Raises:
        MissingFile: The file is not there, may not be read, or is too large; the message is the
            cause.
        OSError: Trouble that four attempts, over some seconds, did not get past.
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
    """Call `read`, and again if the storage has trouble that may pass; see `read_file`."""
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
    """A file was replaced or written while a run reads it."""


def check_unchanged(fd: int, mark: tuple[int, int | str], path: str) -> None:
    """Check that an open file still has a size and an mtime in ns.

    Raises:
        ChangedFile: It has others.
    """
    found = os.fstat(fd)
    if (found.st_size, found.st_mtime_ns) != tuple(mark):
        raise ChangedFile(f"{path}: its content was changed since it was looked at; start again")


class RangeFile:
    """A file that is read by ranges, on a disk or behind a URL; opened on its first read.

    Attributes:
        piece_bytes: Bytes worth reading at once when small ranges follow each other.

    Args:
        path: The file or its URL.
        root: The folder of the data set; see `read_file`. None: the file's folder.
        mark: Size, and mtime in ns or etag. Reading other content is an error. None: any content.
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
        """Read the bytes of a range.

        Raises:
            RecordError: There are fewer, or the file is gone or unreadable.
            OSError: Trouble that did not pass.
        """
        value = self.read_upto(offset, size_bytes)
        _check_length(len(value), size_bytes)
        return value

    def view(self, offset: int, size_bytes: int) -> NDArray[np.uint8]:
        """Map the bytes of a range, uint8 [size_bytes], read-only; behind a URL, read them.

        Raises:
            RecordError: There are fewer.
            OSError: It cannot be opened.
        """
        if self._is_far:
            return np.frombuffer(self.read(offset, size_bytes), np.uint8)
        file = self._open()
        # Pages behind the end of a file that became shorter must not be touched.
        left = os.fstat(file.fileno()).st_size - offset
        _check_length(min(left, size_bytes), size_bytes)
        if self._memory is None:
            self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(self._memory, np.uint8, size_bytes, offset)

    def read_upto(self, offset: int, size_bytes: int) -> bytes:
        """Read the bytes of a range, as many of them as there are.

        Raises:
            MissingFile: The file is gone or unreadable.
            OSError: Trouble that did not pass.
        """
        if self._is_far:
            from penstock.datasets.files.remote import read_range

            mark = None if self._mark is None else str(self._mark[1])
            return read_range(self.path, self.root, offset, size_bytes, mark)

        def read() -> bytes:
            file = self._open()  # held, so that no other thread's reopening closes it meanwhile
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
                return b"".join(parts)  # a single one is not copied
            except OSError:
                # A stale handle stays stale: the next attempt has a new one.
                self._file = None
                raise

        return retried(read, path=self.path, root=self.root)

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        self._file = None  # a read of another thread holds it until it ends

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
    """Opens files by their names, such as `datasets.files.data_files.DataFiles`."""

    def open(self, name: str) -> RangeFile:
        """Open one of them."""


class OpenFiles:
    """The files of a data set by name; those not used for longest are closed.

    Args:
        place: The folder that the names are relative to; or files as they were found, which may
            lie behind a URL.
    """

    def __init__(self, place: str | Opener) -> None:
        self._place = place
        self._files: OrderedDict[str, RangeFile] = OrderedDict()

    def __getitem__(self, name: str) -> RangeFile:
        # Each step is atomic by itself; two threads that meet open a file twice, and lose nothing.
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
    """A range file as a file object with a position of its own, for libraries that want one.

    Args:
        file: The file.
        size_bytes: Its size.
    """

    def __init__(self, file: RangeFile, size_bytes: int) -> None:
        self._ranges = file
        self._size = size_bytes
        self._at = 0

    def readable(self) -> bool:
        """Return whether it can be read."""
        return True

    def seekable(self) -> bool:
        """Return whether it can be read anywhere."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position."""
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
    """Bytes of one file, and the places in them.

    Attributes:
        file: The file, by number.
        offset: Where the run begins.
        size_bytes: How long it is.
        parts: Of each place: its number in the request, start and stop within the run.
    """

    file: int
    offset: int
    size_bytes: int
    parts: list[tuple[int, int, int]]


def find_runs(files: NDArray[Any], offsets: NDArray[Any], sizes: NDArray[Any]) -> Iterator[Run]:
    """Sort places by where they lie, and put those together that are near each other.

    Args:
        files: The file of each place, integer [n].
        offsets: Where it begins, integer [n].
        sizes: Its length, integer [n].

    Yields:
        Runs, in the order of the files; every place is in one.
    """
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
