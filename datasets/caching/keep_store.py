"""Entries in shared memory that are kept for good: the policy `keep`.

Over shuffled epochs every record is asked for once an epoch, so what was used last is no more
likely to come soon than anything else. Evicting for a newcomer then gives a certain hit for an
equally likely one, and costs a write: a cache of half of the data that keeps what it has hits half
of the time, one that evicts what was used longest ago 15 % of the time (1/2 - ln(2)/2).
"""

from __future__ import annotations

import logging
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.caching.entries import Entry, write_parts
from datasets.process_lock import ProcessLock
from datasets.shared_area import SharedArea

_HEADER_BYTES = 4096
_ALIGNMENT = 64
_END, _IS_FULL, _REFUSALS = range(3)
# An entry that does not fit ends the admission if less than this share is left, and so do many.
_REST = 1 / 16
_MOST_REFUSALS = 64
_PREFIX = struct.Struct("<qq")  # size, record

_log = logging.getLogger(__name__)


class KeepStore:
    """A table of places by record number, and entries one behind the other.

    Places are taken under a lock; entries are written without it, and then published by one store
    of eight bytes, which is what readers look at. So a reader sees all of an entry or nothing. A
    writer that is killed leaves a hole, and nothing else.

    Args:
        count: Number of records.
        size_bytes: Memory in all, the table included.

    Raises:
        ValueError: The table alone would take it.
    """

    is_private = False

    def __init__(self, count: int, size_bytes: int) -> None:
        start = _aligned(_HEADER_BYTES + 8 * count)
        if size_bytes < start + _HEADER_BYTES:
            raise ValueError(
                f"dataset.cache.max_bytes: {size_bytes:,} bytes, but the table of {count:,} "
                f"records takes {start:,} of them; allow more"
            )
        self._count = count
        self._attach(SharedArea(size_bytes - size_bytes % _HEADER_BYTES))
        self._words[_END] = start

    def _attach(self, area: SharedArea) -> None:
        self._area = area
        self._lock = ProcessLock(area.descriptor)
        self._words = area.words(0, 8)
        self._table = area.words(_HEADER_BYTES, self._count)
        self._all = area.words(0, len(area.memory) // 8)

    @property
    def used_bytes(self) -> int:
        """Memory that is taken, the table included."""
        return int(self._words[_END])

    @property
    def wants_more(self) -> bool:
        """Whether another entry may be admitted."""
        return not self._words[_IS_FULL]

    def get(self, index: int) -> NDArray[np.uint8] | None:
        """The entry of a record, uint8 [size_bytes], which never changes; None: there is none."""
        at = self._table[index]
        if not at:
            return None
        size, number = self._all[at // 8], self._all[at // 8 + 1]
        assert number == index, "a place holds what its table says"
        return self._area.memory[at + _PREFIX.size : at + _PREFIX.size + size]

    def put(self, index: int, entry: Entry) -> bool:
        """Keep an entry, if there is room; whether it was admitted."""
        needed = _aligned(_PREFIX.size + entry.size_bytes)
        size_bytes = len(self._area.memory)
        with self._lock:
            at = self._words[_END]
            if self._table[index]:
                return False
            if at + needed > size_bytes:
                self._words[_REFUSALS] += 1
                little = size_bytes - at < _REST * size_bytes
                self._words[_IS_FULL] |= little or self._words[_REFUSALS] >= _MOST_REFUSALS
                return False
            self._words[_END] = at + needed
        head = _PREFIX.pack(entry.size_bytes, index)
        try:
            parts = [head, *entry.parts]
            write_parts(self._area.descriptor, parts, len(head) + entry.size_bytes, at)
        except OSError as error:  # the system has no memory left, whatever the limit says
            _log.warning("dataset.cache: nothing more is admitted: %s", error.strerror)
            self._words[_IS_FULL] = 1
            return False
        # The lock orders the stores, also on processors that would not.
        with self._lock:
            if self._table[index]:  # another process was faster: what was written here is a hole
                return False
            self._table[index] = at
        return True

    def __getstate__(self) -> dict[str, Any]:
        return {"_count": self._count, "_area": self._area}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._count = state["_count"]
        self._attach(state["_area"])


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
