"""Locks that no process can leave behind: between threads, and between processes."""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from typing import Any


class ThreadLock:
    """A lock between the threads of a process, free in every process that is forked from it.

    A Ctrl-C may come right after it was taken, or right before it is given back. So it knows its
    thread, which takes it over the next time; no thread takes it twice on purpose.
    """

    def __init__(self) -> None:
        self.renew()
        _locks.add(self)

    def renew(self) -> None:
        """In a process that was just forked no thread holds anything."""
        self._lock: Any = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock._is_owned():
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class ProcessLock:
    """Holds one byte of a file (POSIX record locks), and a lock among the threads of a process.

    The kernel takes the byte back when its holder ends, however it ends; a forked process does
    not inherit it. It is also taken back when the process closes *any* descriptor of the file, so
    a process has one object for a file, which lives as long as the file is used.

    Args:
        descriptor: The file, opened for writing.
        at: The byte.

    Attributes:
        threads: The lock among threads alone.
    """

    def __init__(self, descriptor: int, *, at: int = 0) -> None:
        self.threads = ThreadLock()
        self._descriptor = descriptor
        self._at = at

    def __enter__(self) -> None:
        self.threads.__enter__()
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, self._at)
        except BaseException:
            self.threads.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, self._at)
        finally:
            self.threads.__exit__()


_locks: weakref.WeakSet[ThreadLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(after_in_child=_renew_all)
