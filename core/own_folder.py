"""A temporary folder of this process; if it was killed, the next process removes what it left."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

_LOCK = "lock"
_SEMAPHORES = Path("/dev/shm")

_held: tuple[int, Path, IO[bytes]] | None = None


def own_folder() -> Path:
    """This process's folder. A lock tells that the process lives, and that no signal leaves behind.

    Its name begins those of the semaphores of multiprocessing, which it may leave behind as well.
    """
    global _held
    if _held is None or _held[0] != os.getpid():
        prefix = f"penstock-{os.getuid()}-"
        _remove_dead(prefix)
        made = Path(tempfile.mkdtemp(prefix=f".{prefix}"))
        lock = open(made / _LOCK, "wb")
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder = made.with_name(made.name.removeprefix("."))  # not before it is locked
        made.rename(folder)
        _held = os.getpid(), folder, lock
        atexit.register(_remove, folder, os.getpid())
    return _held[1]


def _remove_dead(prefix: str) -> None:
    for lock in Path(tempfile.gettempdir()).glob(f"{prefix}*/{_LOCK}"):
        with suppress(OSError), open(lock, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for semaphore in _SEMAPHORES.glob(f"sem.{lock.parent.name}-*"):
                semaphore.unlink(missing_ok=True)
            shutil.rmtree(lock.parent, ignore_errors=True)


def _remove(folder: Path, maker: int) -> None:
    if os.getpid() == maker:  # not in a process that was forked from it
        shutil.rmtree(folder, ignore_errors=True)
