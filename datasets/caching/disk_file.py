"""One cache on disk, as a process has it open: a table of places, and a file that only grows."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import weakref
import zlib
from pathlib import Path
from typing import Any

from datasets.caching.disk_folder import ALLOCATION_BYTE, ENDINGS, USE_BYTE, DiskFolder
from datasets.process_lock import ProcessLock, ThreadLock

_MAGIC = b"PENSTOCK CACHE 1"
_ABOUT = struct.Struct("<II")  # length and checksum of the identity
_WORD = struct.Struct("<q")
_HEADER_BYTES = 4096
_END_AT = _HEADER_BYTES
_RESERVED_AT = _HEADER_BYTES + 8
_PLACES_AT = 2 * _HEADER_BYTES

_open_files: weakref.WeakValueDictionary[str, DiskFile] = weakref.WeakValueDictionary()
_opening = ThreadLock()
_being_opened: set[str] = set()


class DiskFile:
    """A table file and a data file; made by `open_file`, one object for a process.

    Both are read and written by place and never mapped, so that no other program's doing (a file
    cut short, a disk that is full) can end this process by a signal.

    Attributes:
        table: Descriptor of the table: int64 by record, 0 or a place.
        data: Descriptor of the entries.
        lock: Held while places are taken or published.
    """

    def __init__(self, folder: DiskFolder, name: str, identity: dict[str, Any], count: int) -> None:
        self.name = name
        self._folder = folder
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        path, data_path = (folder.path / f"{name}{ending}" for ending in ENDINGS)
        while True:
            self.table = os.open(path, flags, 0o600)
            fcntl.lockf(self.table, fcntl.LOCK_SH, 1, USE_BYTE)
            if _is_same(path, self.table):
                break
            os.close(self.table)  # dropped by another process between the two lines
        self.data = os.open(data_path, flags, 0o600)
        weakref.finalize(self, _close, self.table, self.data, folder)
        self.lock = ProcessLock(self.table, at=ALLOCATION_BYTE)
        with self.lock:
            if not self._is_whole(path, identity, count):
                self._make(identity, count)
        os.utime(self.table)

    def _is_whole(self, path: Path, identity: dict[str, Any], count: int) -> bool:
        header = os.pread(self.table, _HEADER_BYTES, 0)
        if header and any(header) and not header.startswith(_MAGIC):
            raise ValueError(
                f"dataset.cache.path: {path} is no cache; move it away, or give another folder"
            )
        if len(header) < _HEADER_BYTES:
            return False
        length, checksum = _ABOUT.unpack_from(header, len(_MAGIC))
        start = len(_MAGIC) + _ABOUT.size
        about = header[start : start + length]
        size_bytes = os.fstat(self.table).st_size
        return (
            zlib.crc32(about) == checksum
            and about == _as_bytes(identity)
            and size_bytes == _PLACES_AT + 8 * count
            and 0 <= self.end <= self.reserved
        )

    def _make(self, identity: dict[str, Any], count: int) -> None:
        """Make it empty; the header comes last, so that what is killed here is made again."""
        about = _as_bytes(identity)
        os.ftruncate(self.table, 0)
        os.ftruncate(self.data, 0)
        os.ftruncate(self.table, _PLACES_AT + 8 * count)
        header = _MAGIC + _ABOUT.pack(len(about), zlib.crc32(about)) + about
        os.pwrite(self.table, header.ljust(_HEADER_BYTES, b"\0"), 0)

    @property
    def end(self) -> int:
        """Where the next entry begins."""
        return self._word(_END_AT)

    @property
    def reserved(self) -> int:
        """How far entries may go before the file must be made larger."""
        return self._word(_RESERVED_AT)

    def place(self, index: int) -> int:
        """What the table says about a record; 0: nothing."""
        return self._word(_PLACES_AT + 8 * index)

    def set_place(self, index: int, place: int) -> None:
        """Publish or withdraw an entry; under the lock."""
        os.pwrite(self.table, _WORD.pack(place), _PLACES_AT + 8 * index)

    def take(self, size_bytes: int) -> int | None:
        """Take the next place of a size; under the lock. None: there is no room for it.

        Raises:
            OSError: The system refuses.
        """
        end, reserved = self.end, self.reserved
        if end + size_bytes > reserved:
            keep = {file.name for file in list(_open_files.values())} | _being_opened
            more = self._folder.grow(
                self.data, size_bytes=reserved, least=end + size_bytes - reserved, keep=keep
            )
            if more == reserved:
                return None
            os.pwrite(self.table, _WORD.pack(more), _RESERVED_AT)
        os.pwrite(self.table, _WORD.pack(end + size_bytes), _END_AT)
        return end

    def _word(self, at: int) -> int:
        word = os.pread(self.table, 8, at)
        return int(_WORD.unpack(word)[0]) if len(word) == 8 else 0


def open_file(
    folder: Path, *, identity: dict[str, Any], name: str, count: int, max_bytes: int
) -> DiskFile:
    """The cache `name` in a folder, made if it is not there; one object for each process.

    Raises:
        ValueError: The folder cannot be used.
    """
    key = os.path.join(os.path.realpath(folder), name)
    with _opening:
        file = _open_files.get(key)
        if file is None or not _is_same(folder / f"{name}{ENDINGS[0]}", file.table):
            _being_opened.add(name)
            try:
                file = DiskFile(DiskFolder(folder, max_bytes=max_bytes), name, identity, count)
            except OSError as error:
                raise ValueError(
                    f"dataset.cache.path: {folder} cannot be used ({error.strerror}); give another "
                    f"folder"
                ) from error
            finally:
                _being_opened.discard(name)
            _open_files[key] = file
        return file


def _as_bytes(identity: dict[str, Any]) -> bytes:
    return json.dumps(identity, sort_keys=True).encode()


def _is_same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _close(table: int, data: int, folder: DiskFolder) -> None:
    os.close(table)
    os.close(data)
    folder.close()
