"""Locks that outlive no process: between threads, and between processes."""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from typing import Any


class ThreadLock:
    """A lock between threads, free in every forked process.

    Ctrl-C may interrupt its thread just after the acquire or just before the release. The lock is
    therefore reentrant, and the thread takes it again without blocking.
    """

    def __init__(self) -> None:
        self.renew()
        _locks.add(self)

    def renew(self) -> None:
        """Replace the lock, in a forked process where no thread can hold it."""
        self._lock: Any = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock._is_owned():
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class ProcessLock:
    """Locks one byte of a file (POSIX record locks), and a lock between the process's threads.

    The kernel releases the byte when its holder ends, and a fork does not inherit it. It also
    releases the byte when the process closes *any* descriptor of the file. So use one object for a
    file in each process, and keep it as long as the file is used.

    Args:
        descriptor: The file, opened for writing.
        at: Offset of the byte.

    Attributes:
        threads: The lock between threads alone.
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
