"""The folder of the disk caches: its byte limit, and which caches are in use."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from pathlib import Path

from datasets.process_lock import ProcessLock

ENDINGS = (".table", ".data")
ALLOCATION_BYTE, USE_BYTE = 0, 1
"""Bytes of a table file that are locked, for changes and for as long as it is in use."""
_NAME = re.compile(r"[0-9a-f]{32}\.(table|data)")
_LOCK_NAME = "caches.lock"


class DiskFolder:
    """A folder that holds caches, and nothing is deleted from but caches.

    Args:
        path: The folder; made if it is not there.
        max_bytes: What the files of all caches in it may have, together.

    Raises:
        ValueError: It cannot be made, written, or locked.
    """

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        self.path = path
        self.max_bytes = max_bytes
        try:
            path.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(path / _LOCK_NAME, flags, 0o600)
        except OSError as error:
            raise ValueError(
                f"dataset.cache.path: {path} cannot be written ({error.strerror}); give a folder "
                f"that can"
            ) from error
        self._lock = ProcessLock(self._descriptor)
        try:
            with self._lock:
                pass
        except OSError as error:
            raise ValueError(
                f"dataset.cache.path: files in {path} cannot be locked ({error.strerror}); give a "
                f"folder on a disk of this machine"
            ) from error

    def grow(self, data: int, *, size_bytes: int, least: int, keep: set[str]) -> int:
        """Let a cache's file become larger, within the limit of the folder.

        Caches that no process has open make room, those first that were opened longest ago.

        Args:
            data: The descriptor of the file.
            size_bytes: Its size.
            least: By how much it must grow.
            keep: Names of caches that this process has open.

        Returns:
            The new size; `size_bytes` if there is no room.

        Raises:
            OSError: The system refuses.
        """
        wanted = max(least, min(1 << 26, max(1 << 16, self.max_bytes // 64)))
        with self._lock:
            room = self.max_bytes - self._total()
            while room < least and self._drop_oldest(keep):
                room = self.max_bytes - self._total()
            if room < least:
                return size_bytes
            size_bytes += min(wanted, room)
            os.ftruncate(data, size_bytes)
            return size_bytes

    def _total(self) -> int:
        sizes = (_size(entry) for entry in os.scandir(self.path) if _NAME.fullmatch(entry.name))
        return sum(sizes)

    def _drop_oldest(self, keep: set[str]) -> bool:
        """Delete the cache that was opened longest ago and that nobody has open now."""
        tables = [e for e in os.scandir(self.path) if _NAME.fullmatch(e.name)]
        for entry in sorted(tables, key=_opened):
            name, ending = os.path.splitext(entry.name)
            if name not in keep and ending == ENDINGS[0] and self._drop(name):
                return True
        return False

    def _drop(self, name: str) -> bool:
        table, data = (self.path / f"{name}{ending}" for ending in ENDINGS)
        try:
            descriptor = os.open(table, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, USE_BYTE)
            data.unlink(missing_ok=True)
            table.unlink(missing_ok=True)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            return False
        finally:
            os.close(descriptor)
        return True

    def close(self) -> None:
        """Close its lock's file."""
        os.close(self._descriptor)


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except FileNotFoundError:
        return 0


def _opened(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
