"""Durations of the stages of a batch, and counts of cache and server accesses."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

_COUNTS = ("hits", "misses", "damaged", "requests", "fetched_bytes")


class CountedRecords(list[Any]):
    """Records from a cache or server, with the counts of `StageTimes` for this read.

    `decode_s` is the time in which the cache decoded records, in seconds.
    """

    def __init__(
        self,
        records: Iterable[Any],
        *,
        hits: int = 0,
        misses: int = 0,
        damaged: int = 0,
        requests: int = 0,
        fetched_bytes: int = 0,
        decode_s: float = 0.0,
    ) -> None:
        super().__init__(records)
        self.hits, self.misses, self.damaged = hits, misses, damaged
        self.requests, self.fetched_bytes = requests, fetched_bytes
        self.decode_s = decode_s

    @classmethod
    def of(cls, records: list[Any], read: Iterable[Sequence[Any]]) -> list[Any]:
        """Return `records` with the summed counts of the reads that they come from, if any."""
        counted = [each for each in read if isinstance(each, cls)]
        if not counted:
            return records
        names = (*_COUNTS, "decode_s")
        return cls(records, **{n: sum(getattr(each, n) for each in counted) for n in names})


@dataclass(slots=True)
class Traffic:
    """Requests of a thread to servers, reads and listings, and the bytes received."""

    requests: int = 0
    size_bytes: int = 0

    def add(self, other: Traffic) -> None:
        """Add the requests that another thread made for this one."""
        self.requests += other.requests
        self.size_bytes += other.size_bytes


class _Local(threading.local):
    def __init__(self) -> None:
        self.traffic = Traffic()


_local = _Local()


def traffic() -> Traffic:
    """Return this thread's traffic since its start."""
    return _local.traffic


@contextmanager
def counted() -> Iterator[Traffic]:
    """Yield the traffic of this thread in the block, filled in at its end."""
    mine, asked = traffic(), Traffic()
    requests, size_bytes = mine.requests, mine.size_bytes
    try:
        yield asked
    finally:
        asked.requests = mine.requests - requests
        asked.size_bytes = mine.size_bytes - size_bytes


@dataclass(slots=True)
class StageTimes:
    """Seconds in each stage, in the computing thread, summed over samples.

    Attributes:
        read: Reading records from the storage.
        decode: Decoding, also of images that waited for the draw of their crop.
        transform: Augmentation, without deferred decoding.
        collate: Merging samples into a batch.
        hits: Number of cache hits.
        misses: Number of cache misses; 0 without a cache.
        damaged: Number of damaged cache entries, which were dropped.
        requests: Number of requests to servers, for data at a URL.
        fetched_bytes: Bytes from servers.
    """

    read: float = 0.0
    decode: float = 0.0
    transform: float = 0.0
    collate: float = 0.0
    hits: int = 0
    misses: int = 0
    damaged: int = 0
    requests: int = 0
    fetched_bytes: int = 0

    def count(self, records: Sequence[Any] | None) -> None:
        """Add the counts of records, and move the cache's decoding from `read` to `decode`."""
        if isinstance(records, CountedRecords):
            self.read -= records.decode_s
            self.decode += records.decode_s
            for name in _COUNTS:
                setattr(self, name, getattr(self, name) + getattr(records, name))

    def ask(self, asked: Traffic) -> None:
        """Add requests to servers."""
        self.requests += asked.requests
        self.fetched_bytes += asked.size_bytes

    def add(self, other: StageTimes) -> None:
        """Add the times of another batch."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def total(self) -> float:
        """Seconds of all stages."""
        return self.read + self.decode + self.transform + self.collate
