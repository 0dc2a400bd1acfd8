"""Memory of a fixed size that the processes of a loader read and write, with nothing to clean up.

Like `datasets.shared_bytes`, a memfd: anonymous, outside /dev/shm, gone with the last process that
has it. Pages take memory when they are first written.
"""

from __future__ import annotations

import mmap
import os
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.process_lock import ThreadLock
from datasets.shared_bytes import anonymous_file, reopened_file

_areas: weakref.WeakValueDictionary[tuple[int, int], SharedArea] = weakref.WeakValueDictionary()
_opening = ThreadLock()


class SharedArea:
    """A piece of memory; it pickles as where it is, for as long as its maker lives.

    A process has one object for an area, however often it is unpickled there.

    Args:
        size_bytes: Its size, all zeros at first.

    Attributes:
        descriptor: The file behind it.
        memory: uint8 [size_bytes].
    """

    def __init__(self, size_bytes: int) -> None:
        descriptor, path = anonymous_file(self)
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

    def array(self, at: int, count: int, dtype: Any) -> NDArray[Any]:
        """`count` values at byte `at`."""
        return np.frombuffer(self._mmap, dtype, count, at)

    def give_back(self, at: int, size_bytes: int) -> None:
        """Free the pages of a range of whole pages; they are zero afterwards."""
        if hasattr(mmap, "MADV_REMOVE"):
            self._mmap.madvise(mmap.MADV_REMOVE, at, size_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        path = self._path or f"/proc/{os.getpid()}/fd/{self.descriptor}"
        return _reopened, (path, self._place, len(self.memory))


def _reopened(path: str, place: tuple[int, int], size_bytes: int) -> SharedArea:
    with _opening:
        area = _areas.get(place)
        if area is None:
            area = object.__new__(SharedArea)
            descriptor = reopened_file(path, place, os.O_RDWR)
            area._map(descriptor, None if path.startswith("/proc/") else path, size_bytes)
        return area
