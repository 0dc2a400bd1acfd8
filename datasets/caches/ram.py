"""Cache records in memory that the workers of a loader share."""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.locks import ProcessLock
from penstock.core.record_codec import Entry
from penstock.core.registry import register
from penstock.core.shared_memory import SharedArea
from penstock.datasets.caches.cached_storage import CachedStorage, Store, WholeImages
from penstock.datasets.caches.limits import available_bytes, parse_bytes

if TYPE_CHECKING:
    from penstock.core.contracts import Decoder, Storage

_log = logging.getLogger(__name__)

_PAGE = 4096
_MOST_SHARE = 0.9
_ALIGNMENT = 64
_PREFIX = struct.Struct("<qq")  # size, record
# Words at the beginning of a `KeepStore`.
_END, _IS_FULL, _REFUSALS = range(3)
# Admission ends when an entry does not fit and less than this share is left, or after
# `_MOST_REFUSALS` entries that do not fit.
_REST = 1 / 16
_MOST_REFUSALS = 64


@register("cache", "ram")
def open_ram_cache(
    storage: Storage,
    *,
    decode: Decoder | None = None,
    keys: Mapping[str, str | None] | None = None,
    max_bytes: int | str = "40%",
    what: Literal["encoded", "decoded"] = "encoded",
) -> Storage:
    """Records in memory, one copy for all workers of a loader.

    Each rank on a machine has its own copy. The memory is anonymous and ends with the run.

    Args:
        storage: The storage to cache.
        decode: The data set's decoder.
        keys: The data set's renaming of fields.
        max_bytes: Memory of a split in this process: 4GB, 500MB, or a share of the memory available
            now, such as 40%. Allocated as records arrive.
        what: ``encoded`` stores records as they are read, ``decoded`` the pixels of whole images,
            which take about five times the memory of JPEG files.

    Raises:
        ValueError: A value is invalid.
    """
    if what not in ("encoded", "decoded"):
        raise ValueError(f"dataset.cache.what: {what!r} given, expected encoded or decoded")
    prepare = WholeImages(decode, keys) if what == "decoded" else None
    size_bytes = memory_limit(max_bytes)
    if storage.column_fields:
        _log.warning(
            "dataset/cache=ram: %s has its columns mapped or in memory already; "
            "dataset/cache=none is better",
            storage,
        )
    return CachedStorage(storage, KeepStore(len(storage), size_bytes), prepare=prepare)


def memory_limit(max_bytes: int | str) -> int:
    """Return the limit in bytes, at most the memory of a process; see `open_ram_cache`."""
    available = available_bytes()
    ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    size_bytes = parse_bytes(max_bytes, whole=(available or 1 << 32) // ranks)
    if available is not None and size_bytes > _MOST_SHARE * available:
        _log.warning(
            "dataset.cache.max_bytes: %.1f GB given, %.1f GB of memory are available; %.1f GB are "
            "taken at most",
            size_bytes / 1e9, available / 1e9, _MOST_SHARE * available / 1e9,
        )  # fmt: skip
        size_bytes = int(_MOST_SHARE * available)
    return size_bytes


class KeepStore(Store):
    """Entries in shared memory, never evicted: a table of places, then the entries.

    Shuffled epochs use every record once, so no record is likelier to come soon than another.
    A cache of half of the data without eviction has a hit rate of 50 %; eviction of the least
    recently used record has 15 % (1/2 - ln(2)/2).

    Places are reserved under a lock. Entries are written without it, and published by one store of
    eight bytes. So readers see a whole entry or none, and a killed writer leaves a hole.

    Args:
        size_bytes: Memory in total, table included.

    Raises:
        ValueError: The table alone exceeds it.
    """

    def __init__(self, count: int, size_bytes: int) -> None:
        start = _aligned(_PAGE + 8 * count)
        if size_bytes < start + _PAGE:
            raise ValueError(
                f"dataset.cache.max_bytes: {size_bytes:,} bytes, but the table of {count:,} "
                f"records takes {start:,} of them; allow more"
            )
        self._count = count
        self._attach(SharedArea(size_bytes - size_bytes % _PAGE))
        self._words[_END] = start

    def _attach(self, area: SharedArea) -> None:
        self._area = area
        self.room_bytes = len(area.memory) - _aligned(_PAGE + 8 * self._count)
        self._lock = ProcessLock(area.descriptor)
        self._words = area.words(0, 8)
        self._table = area.words(_PAGE, self._count)
        self._all = area.words(0, len(area.memory) // 8)

    @property
    def used_bytes(self) -> int:
        """Return the memory in use, table included."""
        return int(self._words[_END])

    @property
    def wants_more(self) -> bool:  # type: ignore[override]
        """Return whether the store may admit another entry."""
        return not self._words[_IS_FULL]

    def get_all(self, indices: Sequence[int]) -> list[NDArray[np.uint8] | None]:
        """Return the entries of records, uint8 [size_bytes], which never change."""
        return [self.get(index) for index in indices]

    def put_all(self, entries: Sequence[tuple[int, Entry]]) -> None:
        """Store entries while there is room."""
        for index, entry in entries:
            self.put(index, entry)

    def get(self, index: int) -> NDArray[np.uint8] | None:
        """Return the entry of a record, or None."""
        at = self._table[index]
        if not at:
            return None
        size, number = self._all[at // 8], self._all[at // 8 + 1]
        assert number == index, "a place holds what its table says"
        return self._area.memory[at + _PREFIX.size : at + _PREFIX.size + size]

    def put(self, index: int, entry: Entry) -> bool:
        """Store an entry if there is room; return whether it was admitted."""
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
        try:
            self._area.write([_PREFIX.pack(entry.size_bytes, index), *entry.parts], at)
        except OSError as error:  # the system is out of memory, despite the limit
            _log.warning("dataset.cache: nothing more is admitted: %s", error.strerror)
            self._words[_IS_FULL] = 1
            return False
        # The lock orders the stores on processors that may reorder them.
        with self._lock:
            if self._table[index]:  # another process was faster: this entry becomes a hole
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
