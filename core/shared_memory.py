"""Shared memory of a loader's processes, without any cleanup.

The memory is a memfd, anonymous memory behind a file descriptor. Killed processes leave nothing
behind, and the small /dev/shm of containers does not matter. Pages are allocated on first write.
Forked processes inherit the descriptor. Other processes reopen it through the creator's entry in
/proc, so a plain pickle works while the creator lives. Systems other than Linux use a temporary
file, removed at exit.
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
    """A piece of shared memory that pickles as its address, without its content.

    Each process has one object for an area, even if it unpickles the area several times.

    Args:
        size_bytes: Size of the area, initially zeros.

    Attributes:
        descriptor: The file descriptor.
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
        """Return int64 [count] at byte `at`, a multiple of 8; loads and stores are atomic."""
        return memoryview(self._mmap)[at : at + 8 * count].cast("q")

    def write(self, parts: Sequence[bytes | memoryview], at: int) -> None:
        """Write parts one after another; raise OSError, maybe after some parts, if memory runs out.

        Writing to the file is faster than storing to the map, which faults and zeroes each page.
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
    if os.getpid() == maker:  # not in a fork
        os.unlink(path)
