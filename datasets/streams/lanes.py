"""Order a stream: lanes of shards, records shuffled in windows, lanes in turn.

Lane l of L reads the shards l, l + L, l + 2L, ... of the epoch's order. In round r every lane
with more than r records yields its record r, in the order of the lanes. So the record at a
position depends only on the data, the seed and the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.rng import Stream, philox_words
from penstock.core.sample import BadRecord

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.core.contracts import Source


Keep = Callable[[str], bool]
"""Returns whether the record of a key belongs to the split."""
_LANE_RECORDS = 1 << 44
"""Upper bound of a lane's records in an epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """The shards of an epoch in lanes, each shuffled within windows.

    The first windows of the lanes differ in size, so that no two lanes fill one at the same time.

    Attributes:
        count: The number of lanes of all readers.
        keep: Drops the records of other splits; None keeps all. Damage that ends a shard belongs to
            every split, because the lost keys are unknown.
        window: Records of a lane that are shuffled together; 0 or 1: no shuffling.
    """

    source: Source
    count: int
    keep: Keep | None
    window: int
    seed: int
    epoch: int

    def read(self, shards: Mapping[int, Sequence[Any]], start: int) -> Generator[Any]:
        """Yield the records of lanes, by number, from position `start` on, in order of positions.

        If all lengths are known, skips whole rounds unread until the shortest lane ends, and reads
        the other records before `start`.
        """
        lengths = [n for each in shards.values() if (n := self._length(each)) is not None]
        rounds = 0
        if shards and len(lengths) == len(shards):
            rounds = min(start // len(shards), *lengths)
        with ExitStack() as stack:
            lanes = [self._lane(number, each, rounds) for number, each in shards.items()]
            alive = [stack.enter_context(closing(lane)) for lane in lanes]
            yield from islice(_in_turn(alive), start - rounds * len(shards), None)

    def _length(self, shards: Sequence[Any]) -> int | None:
        """Count the records of a lane; None if the number is unknown without reading."""
        counts = [n for shard in shards if (n := self.source.count(shard)) is not None]
        return sum(counts) if self.keep is None and len(counts) == len(shards) else None

    def _lane(self, number: int, shards: Sequence[Any], start: int) -> Generator[Any]:
        """Yield the records of a lane from record `start`, which is 0 without a known length."""
        window, first = max(self.window, 1), 0
        size = -(-window * (number + 1) // self.count)
        if start >= size:
            first, size = size + (start - size) // window * window, window
        with closing(self._in_order(shards, first)) as records:
            while block := list(islice(records, size)):
                if window > 1:
                    at = {"lane": number, "seed": self.seed, "epoch": self.epoch}
                    block = [block[n] for n in window_order(len(block), first, **at).tolist()]
                skipped = max(start - first, 0)
                first, size = first + len(block), window
                block = block[skipped:][::-1]
                while block:
                    yield block.pop()

    def _in_order(self, shards: Sequence[Any], start: int) -> Generator[Any]:
        """Yield the records of shards, not shuffled."""
        for shard in shards:
            count = self.source.count(shard) if start else None
            if count is not None and count <= start:
                start -= count
                continue
            with closing(self.source.read(shard, start)) as items:
                for item in items:
                    lost = isinstance(item, BadRecord) and item.ends_shard
                    if self.keep is None or self.keep(item.key) or lost:
                        yield item
            start = 0


def window_order(length: int, first: int, *, lane: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Shuffle a window that begins at record `first` of a lane; return its rows, int64 [length]."""
    start = lane * _LANE_RECORDS + first
    words = philox_words(seed, epoch, start, start + length, Stream.WINDOW)[:, 0]
    return np.argsort(words, kind="stable")


def _in_turn(alive: list[Generator[Any]]) -> Iterator[Any]:
    """Yield one record of each lane in turn, until all have ended."""
    end = object()
    while alive:
        ended = []
        for lane in alive:
            item = next(lane, end)
            if item is end:
                ended.append(lane)
            else:
                yield item
        alive = [lane for lane in alive if lane not in ended]
