"""How long the stages of a batch took, and what a cache had of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


class CountedRecords(list[Any]):
    """Records that were read through a cache.

    Args:
        records: The records.
        hits: How many of them the cache had.
        misses: How many it had not.
        damaged: How many of those it dropped because they were damaged.
        decode_s: Seconds that it decoded what it keeps.
    """

    def __init__(
        self, records: Iterable[Any], *, hits: int, misses: int, damaged: int, decode_s: float
    ) -> None:
        super().__init__(records)
        self.hits, self.misses, self.damaged = hits, misses, damaged
        self.decode_s = decode_s

    @classmethod
    def of(cls, records: list[Any], read: Iterable[Sequence[Any]]) -> Sequence[Any]:
        """Give `records`, made of what was `read`, the counts of that, if it has any."""
        counted = [each for each in read if isinstance(each, cls)]
        if not counted:
            return records
        return cls(
            records,
            hits=sum(each.hits for each in counted),
            misses=sum(each.misses for each in counted),
            damaged=sum(each.damaged for each in counted),
            decode_s=sum(each.decode_s for each in counted),
        )


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
    """

    read: float = 0.0
    decode: float = 0.0
    transform: float = 0.0
    collate: float = 0.0
    hits: int = 0
    misses: int = 0
    damaged: int = 0

    def count(self, records: Sequence[Any] | None) -> None:
        """Add what a cache said of records whose reading has been added as a whole."""
        if isinstance(records, CountedRecords):
            self.read -= records.decode_s
            self.decode += records.decode_s
            self.hits += records.hits
            self.misses += records.misses
            self.damaged += records.damaged

    def add(self, other: StageTimes) -> None:
        """Add the times of another batch."""
        self.read += other.read
        self.decode += other.decode
        self.transform += other.transform
        self.collate += other.collate
        self.hits += other.hits
        self.misses += other.misses
        self.damaged += other.damaged

    @property
    def total(self) -> float:
        """Seconds of all stages together."""
        return self.read + self.decode + self.transform + self.collate
