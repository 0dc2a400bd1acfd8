"""Order a stream: lanes of shards, records shuffled in windows, lanes in turn.

Lane l of L reads the shards l, l + L, l + 2L, ... of the epoch's order. In round r every lane
with more than r records yields its record r, in the order of the lanes. So the record at a
position depends only on the data, the seed and the epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
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


class ShardRecords:
    """The records of some shards, one shard after the other.

    Args:
        keep: Drops the records of other splits; None keeps all. Damage that ends a shard belongs to
            every split, because the lost keys are unknown.
        counts: Known numbers of records by shard; finished shards are added.

    Attributes:
        passed: Records that `skip` read and dropped.
        unopened: Records that `skip` passed without reading them.
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
        self._at = 0
        self._items: Generator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while True:
            if self._shard is None:
                self._shard, self._at = next(self._shards), 0
            if self._items is None:
                self._items = self._source.read(self._shard, self._at)
            for item in self._items:
                self._at += 1
                lost = isinstance(item, BadRecord) and item.ends_shard
                if self._keep is None or self._keep(item.key) or lost:
                    return item
            self._counts[self._shard] = self._at
            self._leave()

    def skip(self, count: int) -> int:
        """Skip up to `count` records and return the number skipped."""
        left = count
        while left:
            if self._shard is None:
                self._shard, self._at = next(self._shards, None), 0
                if self._shard is None:
                    break
            exact = self._source.count(self._shard)
            known = self._counts.get(self._shard) if exact is None else exact
            if (
                self._keep is not None
                or known is None
                or (known - self._at > left and exact is None)
            ):
                if next(self, None) is None:
                    break
                self.passed += 1
                left -= 1
                continue
            found = min(left, known - self._at)
            self.close()
            self._at += found
            self.unopened += found
            left -= found
            if self._at == known:
                self._leave()
        return count - left

    def _leave(self) -> None:
        self.close()
        self._shard = None

    def close(self) -> None:
        """Close the open shard."""
        items, self._items = self._items, None
        if items is not None:
            items.close()


class Lane:
    """Shuffles the records of one lane within windows; `window` 0 or 1: no shuffling.

    Reads a window when the previous one is used up. The first windows of the lanes differ in size,
    so that no two lanes fill a window at the same time.
    """

    def __init__(
        self,
        records: ShardRecords,
        *,
        number: int,
        lanes: int,
        window: int,
        seed: int,
        epoch: int,
    ) -> None:
        self.records = records
        self._number = number
        self._window = max(window, 1)
        self._seed, self._epoch = seed, epoch
        self._size = -(-self._window * (number + 1) // lanes)  # of the next window
        self._first = 0  # record of the next window
        self._left: list[Any] = []  # of this window, the last one first

    def __next__(self) -> Any:
        if not self._left:
            self._load()
        if not self._left:
            raise StopIteration
        return self._left.pop()

    def skip(self, count: int) -> int:
        """Skip up to `count` records and return the number skipped."""
        left = count
        while left:
            if not self._left and left >= self._size:
                windows = self._size + (left - self._size) // self._window * self._window
                found = self.records.skip(windows)
                self._moved(found)
                left -= found
                if found < windows:
                    break
                continue
            if not self._left:
                self._load()
            found = min(left, len(self._left))
            if not found:
                break
            del self._left[-found:]
            self.records.passed += found
            left -= found
        return count - left

    def _load(self) -> None:
        """Read the next window."""
        block = list(islice(self.records, self._size))
        if self._window > 1:
            at = {"lane": self._number, "seed": self._seed, "epoch": self._epoch}
            block = [block[n] for n in window_order(len(block), self._first, **at).tolist()]
        self._left = block[::-1]
        self._moved(len(block))

    def _moved(self, count: int) -> None:
        self._first += count
        self._size = self._window


def window_order(length: int, first: int, *, lane: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Shuffle a window that begins at record `first` of a lane; return its rows, int64 [length]."""
    start = lane * _LANE_RECORDS + first
    words = philox_words(seed, epoch, start, start + length, Stream.WINDOW)[:, 0]
    return np.argsort(words, kind="stable")


def read_lanes(lanes: Sequence[Lane], start: int) -> Iterator[Any]:
    """Yield the records of all lanes from position `start` on, in the order of positions.

    Moves the lanes to their places before the first record.
    """
    first, alive = _place(lanes, start)
    return _in_turn(alive, first)


def _in_turn(alive: list[Lane], first: int) -> Iterator[Any]:
    """Yield one record of each lane in turn; the first round begins with lane `first`."""
    while alive:
        ended = []
        for lane in alive[first:]:
            try:
                item = next(lane)
            except StopIteration:
                ended.append(lane)
                continue
            yield item
        first = 0
        alive = [lane for lane in alive if lane not in ended]


def _place(lanes: Sequence[Lane], start: int) -> tuple[int, list[Lane]]:
    """Skip the records before `start`; return the next lane's number and the lanes left."""
    lengths: list[int | None] = [None] * len(lanes)
    given = [0] * len(lanes)
    while True:
        wanted, rounds = _shares(lengths, start)
        for number, lane in enumerate(lanes):
            given[number] += lane.skip(wanted[number] - given[number])
        short = [n for n in range(len(lanes)) if given[n] < wanted[n]]
        for number in short:
            lengths[number] = given[number]
        if not short:
            break
    alive = [n for n, length in enumerate(lengths) if length is None]
    turn = sum(given[n] > rounds for n in alive)
    return turn, [lanes[n] for n in alive]


def _shares(lengths: Sequence[int | None], start: int) -> tuple[list[int], int]:
    """Count the records of each lane among the first `start` positions, and the whole rounds.

    Lanes of unknown length count as endless.
    """
    ends = [start if length is None else length for length in lengths]
    rounds = bisect_right(range(start + 1), start, key=lambda n: sum(min(n, e) for e in ends)) - 1
    shares = [min(end, rounds) for end in ends]
    left = start - sum(shares)
    for n, length in enumerate(lengths):
        if left and (length is None or length > rounds):
            shares[n] += 1
            left -= 1
    return shares, rounds
