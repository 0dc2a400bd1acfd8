"""Memory that the processes of a loader read and write, with nothing to clean up.

It lives in a memfd: anonymous memory of the kernel behind a file descriptor. It has no name, so
nothing is left behind whatever kills us; it is no part of /dev/shm, which containers keep small.
Pages take memory when they are first written. A forked process has the descriptor; any other
reopens it by the maker's entry in /proc, so a plain pickle will do, for as long as the process that
made it lives. Where there is no memfd (it is no Linux), a temporary file takes its place and is
removed at exit.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.locks import ThreadLock

_MOST_PARTS = 64
_areas: weakref.WeakValueDictionary[tuple[int, int], SharedArea] = weakref.WeakValueDictionary()
_opening = ThreadLock()


class SharedArea:
    """A piece of memory; it pickles as where it is, never as what it holds.

    A process has one object for an area, however often it is unpickled there.

    Args:
        size_bytes: Its size, all zeros at first.

    Attributes:
        descriptor: The file behind it.
        memory: uint8 [size_bytes].
    """

    def __init__(self, size_bytes: int) -> None:
        path = None
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("penstock")
        else:
            descriptor, path = tempfile.mkstemp(prefix="penstock-")
            weakref.finalize(self, _remove, path, os.getpid())
        os.ftruncate(descriptor, size_bytes)
        self._map(descriptor, path, size_bytes)

    def _map(self, descriptor: int, path: str | None, size_bytes: int) -> None:
        self.descriptor = descriptor
        self._path = path
        weakref.finalize(self, os.close, descriptor)
        self._mmap = mmap.mmap(descriptor, size_bytes)
        self.memory: NDArray[np.uint8] = np.frombuffer(self._mmap, np.uint8)
        status = os.fstat(descriptor)
        self._place = (status.st_dev, status.st_ino)
        _areas[self._place] = self

    def words(self, at: int, count: int) -> memoryview:
        """int64 [count] at byte `at`, a multiple of 8; each is loaded and stored as a whole."""
        return memoryview(self._mmap)[at : at + 8 * count].cast("q")

    def write(self, parts: Sequence[bytes | memoryview], at: int) -> None:
        """Write parts one behind the other.

        The file takes this better than stores to where it is mapped, each page of which would be
        asked for and zeroed first.

        Raises:
            OSError: The system has no memory left; some of it may be written.
        """
        done = os.pwritev(self.descriptor, parts, at) if len(parts) <= _MOST_PARTS else 0
        rest = memoryview(b"")
        if done < sum(memoryview(part).nbytes for part in parts):
            rest = memoryview(b"".join(parts))[done:]
        while rest:
            written = os.pwrite(self.descriptor, rest, at + done)
            rest, done = rest[written:], done + written

    def __reduce__(self) -> tuple[Any, ...]:
        path = self._path or f"/proc/{os.getpid()}/fd/{self.descriptor}"
        return _reopened, (path, self._place, len(self.memory))


def _reopened(path: str, place: tuple[int, int], size_bytes: int) -> SharedArea:
    with _opening:
        area = _areas.get(place)
        if area is not None:
            return area
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise RuntimeError(
                f"shared memory {path} cannot be opened ({error.strerror}): the process that "
                f"made it has ended, or runs on another machine or as another user; "
                f"dataset/cache=ram and dataset=eager are for one machine, others keep records "
                f"by dataset/cache=disk"
            ) from error
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != place:
            os.close(descriptor)
            raise RuntimeError(f"shared memory {path} is gone: the process that made it has ended")
        area = object.__new__(SharedArea)
        area._map(descriptor, None if path.startswith("/proc/") else path, size_bytes)
        return area


def _remove(path: str, maker: int) -> None:
    if os.getpid() == maker:  # not in a process that was forked from it
        os.unlink(path)
