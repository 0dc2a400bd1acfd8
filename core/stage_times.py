"""Durations of the stages of a batch, and counts of cache and server accesses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace


@dataclass(slots=True, kw_only=True)
class Traffic:
    """Accesses of a thread to servers and caches.

    Attributes:
        requests: Number of requests to servers, reads and listings.
        damaged: Number of damaged cache entries, which were dropped.
        decode_s: Seconds in which a cache decoded records.
    """

    requests: int = 0
    fetched_bytes: int = 0
    hits: int = 0
    misses: int = 0
    damaged: int = 0
    decode_s: float = 0.0

    def add(self, other: Traffic, sign: int = 1) -> None:
        """Add accesses and times of another thread or batch."""
        for each in fields(other):
            setattr(self, each.name, getattr(self, each.name) + sign * getattr(other, each.name))


_local = threading.local()


def traffic() -> Traffic:
    """Return this thread's traffic since its start."""
    found: Traffic = vars(_local).setdefault("traffic", Traffic())
    return found


@contextmanager
def counted() -> Iterator[Traffic]:
    """Yield the traffic of this thread in the block, filled in at its end."""
    mine, asked = traffic(), Traffic()
    before = replace(mine)
    try:
        yield asked
    finally:
        asked.add(mine)
        asked.add(before, -1)


@dataclass(slots=True)
class StageTimes(Traffic):
    """Seconds in each stage, in the computing thread, summed over samples.

    `decode` includes images that waited for the draw of their crop, which `transform` leaves out.
    """

    read: float = 0.0
    decode: float = 0.0
    transform: float = 0.0
    collate: float = 0.0

    def ask(self, asked: Traffic) -> None:
        """Add accesses, and move the cache's decoding from `read` to `decode`."""
        self.add(asked)
        self.read -= asked.decode_s
        self.decode += asked.decode_s

    @property
    def total(self) -> float:
        """Seconds of all stages."""
        return self.read + self.decode + self.transform + self.collate
