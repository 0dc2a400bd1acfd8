"""A file of cached records that processes share, on a disk or in memory."""

from __future__ import annotations

import logging
import os
import struct
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import IO, Any

from penstock.core.record_codec import Entry
from penstock.core.stage_times import traffic

_log = logging.getLogger(__name__)

_PLACE = struct.Struct("=Q")
_HEAD = struct.Struct("<QQ")  # size, checksum
MARK_BYTES = 16
_MOST_BYTES = 1 << 31  # of one write
_FAR = 1 << 62
# Admission ends after an entry that does not fit if less than this share is left.
_REST = 1 / 16


class RecordFile(ABC):
    """Entries by record number in a file that processes share: a table of places, then the entries.

    A writer appends an entry and then writes its place. So no process waits for a lock, readers see
    a whole entry or none, and a killed process leaves a hole. Nothing is evicted: if every record
    is used once an epoch, any fixed half of the data has a hit rate of 50 %, and eviction of the
    least recently used record 15 % (1/2 - ln(2)/2).

    `mark`, of `MARK_BYTES` bytes between the table and the entries, identifies the file.
    ValueError: the table alone exceeds `max_bytes`.
    """

    where: str
    has_checksums = True

    def __init__(self, path: str, mark: bytes, *, count: int, max_bytes: int) -> None:
        self.path = path
        self.wants_more = True
        self._mark = mark
        self._max_bytes = max_bytes
        self._start = _PLACE.size * count + MARK_BYTES
        self.room_bytes = max_bytes - self._start
        self._file: IO[bytes] | None = None
        if self.room_bytes < 0:
            raise ValueError(
                f"dataset.cache.max_bytes: {max_bytes:,} bytes, but the table of {count:,} records "
                f"takes {self._start:,} of them; allow more"
            )

    @abstractmethod
    def open(self) -> IO[bytes]:
        """Open the file for reading and writing; raise OSError if it is not usable."""

    @abstractmethod
    def _left_bytes(self, wanted_bytes: int) -> int:
        """Return how many bytes may be written; `wanted_bytes` are to be."""

    def close(self) -> None:
        """Close the file; the next use reopens it."""
        self._file = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_file": None}

    def _has_mark(self, file: IO[bytes]) -> bool:
        return os.pread(file.fileno(), MARK_BYTES, self._start - MARK_BYTES) == self._mark

    def get_all(self, indices: Sequence[int]) -> list[bytes | None]:
        """Return the entries of records; None for missing entries."""
        try:
            file = self.open()
            return [self._get(file, index) for index in indices]
        except OSError as error:
            self.admit_no_more(error.strerror)
            return [None] * len(indices)

    def _get(self, file: IO[bytes], index: int) -> bytes | None:
        if not (at := self._place(file, index)):
            return None
        head = os.pread(file.fileno(), _HEAD.size, at) if at < _FAR else b""
        if len(head) == _HEAD.size:
            size_bytes, checksum = _HEAD.unpack(head)
            if size_bytes < _MOST_BYTES:
                payload = os.pread(file.fileno(), size_bytes, at + _HEAD.size)
                if len(payload) == size_bytes and self._checksum(index, payload) == checksum:
                    return payload
        os.pwrite(file.fileno(), bytes(_PLACE.size), _PLACE.size * index)
        traffic().damaged += 1
        _warn_once(f"cache {self.where}: a damaged entry was dropped; more is only counted")
        return None

    def _place(self, file: IO[bytes], index: int) -> int:
        place = os.pread(file.fileno(), _PLACE.size, _PLACE.size * index)
        return int.from_bytes(place, sys.byteorder)

    def put_all(self, entries: Sequence[tuple[int, Entry]]) -> None:
        """Store entries by record number while there is room."""
        try:
            left = self._left_bytes(sum(_HEAD.size + entry.size_bytes for _, entry in entries))
            file = self.open()
            # A separate descriptor, whose position is the end of our last write.
            end = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            try:
                for index, entry in entries:
                    # Other threads and processes append too.
                    left = min(left, self._max_bytes - os.fstat(end).st_size)
                    if _HEAD.size + entry.size_bytes <= left:
                        left -= self._append(file, end, index, entry)
                    elif left < _REST * self.room_bytes:
                        self.wants_more = False
            finally:
                os.close(end)
        except OSError as error:
            self.admit_no_more(error.strerror)

    def _append(self, file: IO[bytes], end: int, index: int, entry: Entry) -> int:
        """Store an entry unless another process has; return the bytes written."""
        if self._place(file, index):
            return 0
        payload = b"".join(entry.parts)
        head = _HEAD.pack(len(payload), self._checksum(index, payload))
        written = os.writev(end, [head, payload])
        if written == len(head) + len(payload):  # else the disk is full: the next write raises
            at = os.lseek(end, 0, os.SEEK_CUR) - written
            os.pwrite(file.fileno(), _PLACE.pack(at), _PLACE.size * index)
        return written

    def _checksum(self, index: int, payload: bytes) -> int:
        # The start value keeps zeros from matching.
        return zlib.crc32(payload, index + 1) if self.has_checksums else 0

    def admit_no_more(self, why: str | None) -> None:
        """Stop storing entries, and log the reason once."""
        if self.wants_more:
            self.wants_more = False
            _log.warning("cache %s: nothing more is stored (%s)", self.where, why)


@cache
def _warn_once(text: str) -> None:
    _log.warning("%s", text)
