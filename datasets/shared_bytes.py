"""Bytes written once and mapped by every process that gets them, with nothing to clean up.

They live in a memfd: anonymous memory of the kernel behind a file descriptor. It has no name,
so nothing is left behind whatever kills us; it is no part of /dev/shm, which containers keep
small. A forked process has the descriptor; any other reopens it by the writer's entry in
/proc, so a plain pickle will do, for as long as the process that pickled lives. Where there is
no memfd (it is no Linux), a temporary file takes its place and is removed at exit.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref

import numpy as np
from numpy.typing import NDArray


class SharedBytes:
    """A piece of memory that is appended to and then only read.

    It pickles as where it is, never as what it holds.
    """

    def __init__(self) -> None:
        self._descriptor, self._path = anonymous_file(self)
        self.size_bytes = 0
        self._array: NDArray[np.uint8] | None = None
        weakref.finalize(self, os.close, self._descriptor)

    def append(self, data: bytes | memoryview) -> None:
        """Write at the end; only before the first `view`.

        Raises:
            OSError: There is no memory left.
        """
        assert self._array is None, "written after it was mapped"
        rest = memoryview(data).cast("B")
        while rest:
            written = os.pwrite(self._descriptor, rest, self.size_bytes)
            self.size_bytes += written
            rest = rest[written:]

    def view(self) -> NDArray[np.uint8]:
        """All of it, uint8 [size_bytes], read-only, mapped once per process."""
        if self._array is None:
            if self.size_bytes == 0:
                self._array = np.empty(0, np.uint8)
            else:
                memory = mmap.mmap(self._descriptor, self.size_bytes, prot=mmap.PROT_READ)
                self._array = np.frombuffer(memory, np.uint8)
        return self._array

    def __getstate__(self) -> tuple[str, int, int, int]:
        path = self._path or f"/proc/{os.getpid()}/fd/{self._descriptor}"
        status = os.fstat(self._descriptor)
        return path, status.st_dev, status.st_ino, self.size_bytes

    def __setstate__(self, state: tuple[str, int, int, int]) -> None:
        path, device, inode, self.size_bytes = state
        self._path = None if path.startswith("/proc/") else path
        self._array = None
        self._descriptor = reopened_file(path, (device, inode), os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)


def anonymous_file(owner: object) -> tuple[int, str | None]:
    """A new, empty file in memory: its descriptor, and its path where it has one.

    Args:
        owner: A file with a path is removed when this ends.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create("penstock"), None
    descriptor, path = tempfile.mkstemp(prefix="penstock-")
    weakref.finalize(owner, _remove, path, os.getpid())
    return descriptor, path


def reopened_file(path: str, place: tuple[int, int], flags: int) -> int:
    """A descriptor of a file of `anonymous_file`, in another process.

    Args:
        path: Its path, or its entry in /proc.
        place: Its device and inode.
        flags: How it is opened.

    Raises:
        RuntimeError: The process that made it has ended.
    """
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        raise RuntimeError(
            f"shared memory {path} cannot be opened ({error.strerror}): the process that "
            f"made it has ended, or runs on another machine or as another user"
        ) from error
    status = os.fstat(descriptor)
    if (status.st_dev, status.st_ino) != place:
        os.close(descriptor)
        raise RuntimeError(f"shared memory {path} is gone: the process that made it has ended")
    return descriptor


def _remove(path: str, maker: int) -> None:
    if os.getpid() == maker:  # not in a process that was forked from it
        os.unlink(path)
