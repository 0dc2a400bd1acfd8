"""Order a stream: lanes of shards, records shuffled in windows, positions in turn.

Lane l of L reads the shards l, l + L, l + 2L, ... of the epoch's order. In round r every lane
that has more than r records gives its record r, in the order of the lanes. So the record at a
position is settled by the data, the seed and the epoch, whoever reads, and from where.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.rng import Stream, philox_words
from penstock.core.sample import BadRecord

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.core.contracts import ShardReader, Source


Keep = Callable[[str], bool]
"""Whether the record of a key belongs to the split."""
_LANE_RECORDS = 1 << 44
"""No lane has as many records in an epoch."""


class Lane:
    """Shuffle the records of one lane, each window of them in an order of its own.

    A window is read when the one before has been given out. The windows of the lanes begin at
    different places: no two lanes have to fill theirs at one time.

    Args:
        records: What the lane reads.
        number: Its number.
        lanes: How many there are.
        window: Records that are shuffled together; 0 or 1: none are.
        seed: The run's seed.
        epoch: The epoch.
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
        self._size = -(-self._window * (number + 1) // lanes)
        self._first = 0  # of this window, among the lane's records
        self._block: list[Any] | None = None
        self._order: Any = None
        self._given = 0

    def __next__(self) -> Any:
        block = self._loaded()
        if not block:
            raise StopIteration
        row = int(self._order[self._given])
        item, block[row] = block[row], None
        self._given += 1
        return item

    def skip(self, count: int) -> int:
        """Pass over so many of the lane's records; how many there were."""
        left = count
        while left:
            self._leave_given()
            if self._block is None and left >= self._size:
                windows = self._size + (left - self._size) // self._window * self._window
                found = self.records.skip(windows)
                left -= found
                if found < windows:
                    self._block = []
                    break
                self._first += windows
                self._size = self._window
                continue
            block = self._loaded()
            if not block:
                break
            found = min(left, len(block) - self._given)
            self._given += found
            self.records.passed += found
            left -= found
        return count - left

    def _loaded(self) -> list[Any]:
        """Have a window with records to give; empty at the lane's end."""
        self._leave_given()
        if self._block is None:
            block = self._block = list(islice(self.records, self._size))
            self._given = 0
            self._order = window_order(
                len(block), self._first, lane=self._number, seed=self._seed, epoch=self._epoch
            ) if self._window > 1 else range(len(block))  # fmt: skip
        return self._block

    def _leave_given(self) -> None:
        """Let go of a window all of whose records were given."""
        if self._block and self._given == len(self._block):
            self._first += len(self._block)
            # Only the last window is smaller than it should be, and nothing comes behind it.
            self._size, self._block = self._window, None

    def close(self) -> None:
        """Close what is open."""
        self.records.close()


def window_order(length: int, first: int, *, lane: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Shuffle a window: its rows in the order in which they are given out.

    Args:
        length: Records in the window.
        first: Its first one, among the records of the lane.
        lane: The lane's number.
        seed: The run's seed.
        epoch: The epoch.

    Returns:
        int64 [length]; an argsort of random words.
    """
    start = lane * _LANE_RECORDS + first
    words = philox_words(seed, epoch, start, start + length, Stream.WINDOW)[:, 0]
    return np.argsort(words, kind="stable")


def read_lanes(lanes: Sequence[Lane], start: int) -> Iterator[Any]:
    """Read the records of all lanes from position `start` on, in the order of positions.

    Lanes are moved to their places at once, before the first record is asked for.
    """
    first, alive = _place(lanes, start)
    return _in_turn(alive, first)


def _in_turn(alive: list[Lane], first: int) -> Iterator[Any]:
    """Take turns, round after round, the first of them from lane `first` of those alive on."""
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
    """Move every lane behind the records of the positions before `start`.

    Returns:
        The lane whose turn it is, among those that may have more, and these lanes.
    """
    lengths: list[int | None] = [None] * len(lanes)
    given = [0] * len(lanes)
    while True:
        wanted, rounds = _shares(lengths, start)
        short = False
        for number, lane in enumerate(lanes):
            asked = wanted[number] - given[number]
            given[number] += lane.skip(asked)
            if given[number] < wanted[number]:
                lengths[number] = given[number]
                short = True
        if not short:
            break
    alive = [n for n, length in enumerate(lengths) if length is None]
    turn = sum(given[n] > rounds for n in alive)
    return turn, [lanes[n] for n in alive]


def _shares(lengths: Sequence[int | None], start: int) -> tuple[list[int], int]:
    """Count the records that each lane gives to the first `start` positions, and the whole rounds.

    Lanes of unknown length count as endless.
    """

    def given(rounds: int) -> int:
        return sum(rounds if length is None else min(length, rounds) for length in lengths)

    rounds = bisect_right(range(start + 1), start, key=given) - 1
    left = start - given(rounds)
    shares = []
    for length in lengths:
        share = rounds if length is None else min(length, rounds)
        if left and (length is None or length > rounds):
            share, left = share + 1, left - 1
        shares.append(share)
    return shares, rounds


def close_all(lanes: Sequence[Lane]) -> None:
    """Close every lane, also where closing one fails."""
    for lane in lanes:
        with suppress(OSError):
            lane.close()


class ShardItems:
    """The items of one shard, from an iterator; satisfies `core.contracts.ShardReader`.

    Args:
        items: Gives them.
        close: Lets go of what they come from.
    """

    def __init__(self, items: Iterator[Any], *, close: Callable[[], None]) -> None:
        self._items = items
        self.close = close

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._items)

    def skip(self, count: int) -> int:
        """Have so many items read and drop them; how many there were."""
        return sum(1 for _ in islice(self, count))


class ShardRecords:
    """Read the records of some shards, one shard after the other.

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
            lost = isinstance(item, BadRecord) and item.ends_shard
            if self._keep is None or self._keep(item.key) or lost:
                return item

    def skip(self, count: int) -> int:
        """Pass over so many records; how many there were."""
        if self._keep is not None:
            found = sum(1 for _ in islice(self, count))
            self.passed += found
            return found
        left = count
        while left:
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
