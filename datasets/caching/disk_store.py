"""Entries on disk, checked whenever they are read."""

from __future__ import annotations

import logging
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.caching.disk_file import DiskFile, open_file
from datasets.caching.entries import Entry, write_parts

_log = logging.getLogger(__name__)

_PREFIX = struct.Struct("<IIqqq")  # mark, checksum of what follows it, record, size, unused
_MARK = 0x4B4E5450
_UNIT = 64
_SIZE_BITS = 24
_MOST_UNITS = (1 << _SIZE_BITS) - 1


class DiskStore:
    """Entries of a data set in a folder, for several processes and runs at once.

    An entry is appended where a place was taken under a lock, and its place, one word of the
    table, is published after it was written. Whatever is killed in between leaves a hole. Every
    entry has a checksum, over its record's number too, so that a table and a data file that do
    not fit together (the machine went down) give misses. Nothing is evicted from it: see
    `datasets.caching.keep_store`.

    Args:
        folder: Where it lies.
        name: Names its files.
        identity: JSON of everything that its content depends on; is compared.
        count: Number of records.
        max_bytes: Of all caches in the folder.

    Attributes:
        damaged: Entries that this process found to be damaged, and dropped.

    Raises:
        ValueError: The folder cannot be used.
    """

    is_private = True

    def __init__(
        self, folder: Path, *, name: str, identity: dict[str, Any], count: int, max_bytes: int
    ) -> None:
        self._arguments: dict[str, Any] = {
            "folder": folder, "name": name, "identity": identity, "count": count,
            "max_bytes": max_bytes,
        }  # fmt: skip
        self.wants_more = True
        self.damaged = 0
        self._opened: DiskFile | None = open_file(**self._arguments)

    @property
    def _file(self) -> DiskFile:
        if self._opened is None:
            self._opened = open_file(**self._arguments)
        return self._opened

    def get(self, index: int) -> NDArray[np.uint8] | None:
        """The entry of a record, uint8 [size_bytes], new memory; None: there is none."""
        file = self._file
        place = file.place(index)
        if place <= 0:
            return None
        at, room = (place >> _SIZE_BITS) * _UNIT, (place & _MOST_UNITS) * _UNIT
        entry = self._read(file, index, at, room)
        if entry is None:
            self._drop(file, index, place)
        return entry

    def _read(self, file: DiskFile, index: int, at: int, room: int) -> NDArray[np.uint8] | None:
        try:
            if at + room > os.fstat(file.data).st_size:
                return None
            memory = np.empty(room, np.uint8)
            done = os.preadv(file.data, [memory], at)  # type: ignore[list-item]
        except OSError:
            return None
        if done != room or room < _PREFIX.size:
            return None
        mark, checksum, number, size, _ = _PREFIX.unpack_from(memory.data)
        if mark != _MARK or number != index or not 0 <= size <= room - _PREFIX.size:
            return None
        if zlib.crc32(memory.data[8 : _PREFIX.size + size]) != checksum:
            return None
        return memory[_PREFIX.size : _PREFIX.size + size]

    def _drop(self, file: DiskFile, index: int, place: int) -> None:
        with file.lock:
            if file.place(index) != place:
                return  # another process has seen to it
            file.set_place(index, 0)
        self.damaged += 1
        if self.damaged == 1:
            _log.warning(
                "cache %s: a damaged entry (record %d) was dropped, and is read from the data "
                "again; others are only counted", self._arguments["folder"], index,
            )  # fmt: skip

    def put(self, index: int, entry: Entry) -> bool:
        """Keep an entry, if there is room; whether it was admitted."""
        room = -(-(_PREFIX.size + entry.size_bytes) // _UNIT) * _UNIT
        if room // _UNIT > _MOST_UNITS:
            return False
        try:
            return self._put(self._file, index, entry, room)
        except OSError as error:
            self._stop(f"{error.strerror}")
            return False

    def _put(self, file: DiskFile, index: int, entry: Entry, room: int) -> bool:
        with file.lock:
            if file.place(index):
                return False
            at = file.take(room)
        if at is None:
            self.wants_more = False
            return False
        head = _PREFIX.pack(_MARK, 0, index, entry.size_bytes, 0)
        checksum = zlib.crc32(head[8:])
        for part in entry.parts:
            checksum = zlib.crc32(part, checksum)
        head = _PREFIX.pack(_MARK, checksum, index, entry.size_bytes, 0)
        gap = bytes(room - _PREFIX.size - entry.size_bytes)
        write_parts(file.data, [head, *entry.parts, gap], room, at)
        with file.lock:
            if file.place(index):
                return False
            file.set_place(index, at // _UNIT << _SIZE_BITS | room // _UNIT)
        return True

    def _stop(self, why: str) -> None:
        if self.wants_more:
            _log.warning(
                "cache %s: nothing more is admitted (%s); what it holds is still used",
                self._arguments["folder"], why,
            )  # fmt: skip
        self.wants_more = False

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None, "damaged": 0}
