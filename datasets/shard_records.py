"""The records of a stream's shards, one shard after the other, without those of other splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from datasets.sample import BadRecord

if TYPE_CHECKING:
    from datasets.protocols import ShardReader, Source

Keep = Callable[[str], bool]
"""Whether the record of a key belongs to the split."""


class ShardRecords:
    """The records of some shards, one shard after the other.

    Args:
        source: Where the shards are.
        shards: Which, in order.
        keep: Leaves out the records of other splits; None keeps all. Damage that ends a shard
            concerns every split: nobody knows whose records were lost.
        counts: Records by shard, as far as they are known; added to.

    Attributes:
        passed: Records that were passed over one by one.
        unopened: Records in shards that were not even opened.
    """

    def __init__(
        self, source: Source, shards: Sequence[Any], *, keep: Keep | None, counts: dict[Any, int]
    ) -> None:
        self.passed = self.unopened = 0
        self._source = source
        self._shards = iter(shards)
        self._keep = keep
        self._counts = counts
        self._shard: Any = None
        self._reader: ShardReader | None = None
        self._read = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while True:
            if self._reader is None:
                self._open(next(self._shards))
            assert self._reader is not None
            item = next(self._reader, None)
            if item is None:
                self._end()
                continue
            self._read += 1
            if self._keep is None or self._keep(item.key) or _ends_shard(item):
                return item

    def skip(self, count: int) -> int:
        """Pass over so many records; how many there were."""
        left = count
        while left:
            if self._keep is not None:
                if next(self, None) is None:
                    break
                self.passed += 1
                left -= 1
                continue
            if self._reader is None:
                shard = next(self._shards, None)
                if shard is None:
                    break
                known = self._counts.get(shard)
                if known is not None and known <= left:
                    left -= known
                    self.unopened += known
                    continue
                self._open(shard)
            assert self._reader is not None
            found = self._reader.skip(left)
            self._read += found
            self.passed += found
            if found < left:
                self._end()
            left -= found
        return count - left

    def _open(self, shard: Any) -> None:
        self._shard, self._read = shard, 0
        self._reader = self._source.open(shard)

    def _end(self) -> None:
        self._counts[self._shard] = self._read
        self.close()

    def close(self) -> None:
        """Close the shard that is open."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def _ends_shard(item: Any) -> bool:
    return isinstance(item, BadRecord) and item.ends_shard
