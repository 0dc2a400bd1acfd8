"""How long the stages of a batch took, and what caches and servers had to do with it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

_COUNTS = ("hits", "misses", "damaged", "requests", "fetched_bytes")


class CountedRecords(list[Any]):
    """Records that were read through a cache, or from a server.

    Args:
        records: The records.
        hits: How many of them the cache had.
        misses: How many it had not.
        damaged: How many of those it dropped because they were damaged.
        requests: How often a server was asked for them.
        fetched_bytes: What came from it.
        decode_s: Seconds that the cache decoded what it keeps.
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
        """Give `records`, made of what was `read`, the counts of that, if it has any."""
        counted = [each for each in read if isinstance(each, cls)]
        if not counted:
            return records
        names = (*_COUNTS, "decode_s")
        return cls(records, **{n: sum(getattr(each, n) for each in counted) for n in names})


@dataclass(slots=True)
class Traffic:
    """What a thread asked servers for.

    Attributes:
        requests: Reads and listings.
        size_bytes: Bytes that came.
    """

    requests: int = 0
    size_bytes: int = 0

    def add(self, other: Traffic) -> None:
        """Add what another thread asked for in place of this one."""
        self.requests += other.requests
        self.size_bytes += other.size_bytes


class _Local(threading.local):
    def __init__(self) -> None:
        self.traffic = Traffic()


_local = _Local()


def traffic() -> Traffic:
    """Count what this thread has asked for since it began."""
    return _local.traffic


@contextmanager
def counted() -> Iterator[Traffic]:
    """Count what this thread asks for in the block, which is known at its end."""
    mine, asked = traffic(), Traffic()
    requests, size_bytes = mine.requests, mine.size_bytes
    try:
        yield asked
    finally:
        asked.requests = mine.requests - requests
        asked.size_bytes = mine.size_bytes - size_bytes


@dataclass(slots=True)
class StageTimes:
    """Seconds of the stages, in the thread that computed them, summed over samples.

    Attributes:
        read: Reading records from the storage.
        decode: Bytes to arrays, also where that waits for the crop to be drawn.
        transform: The augmentation, without the decoding that it waits for.
        collate: Samples to a batch.
        hits: Records that a cache had.
        misses: Records that it had not; 0, like `hits`, without one.
        damaged: Entries of a cache that were damaged, and dropped.
        requests: Questions to servers, where data lies behind a URL.
        fetched_bytes: What came from them.
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
        """Add what was counted of records whose reading has been added as a whole."""
        if isinstance(records, CountedRecords):
            self.read -= records.decode_s
            self.decode += records.decode_s
            for name in _COUNTS:
                setattr(self, name, getattr(self, name) + getattr(records, name))

    def ask(self, asked: Traffic) -> None:
        """Add what servers were asked for."""
        self.requests += asked.requests
        self.fetched_bytes += asked.size_bytes

    def add(self, other: StageTimes) -> None:
        """Add the times of another batch."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def total(self) -> float:
        """Seconds of all stages together."""
        return self.read + self.decode + self.transform + self.collate
