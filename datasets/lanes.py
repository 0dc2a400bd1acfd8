"""The order of a stream: lanes of shards, records shuffled in windows, positions in turn.

Lane l of L reads the shards l, l + L, l + 2L, ... of the epoch's order. In round r every lane
that has more than r records gives its record r, in the order of the lanes. So the record at a
position is settled by the data, the seed and the epoch, whoever reads, and from where.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.rng import Stream, philox_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from datasets.shard_records import ShardRecords

_LANE_RECORDS = 1 << 44
"""No lane has as many records in an epoch."""


class Lane:
    """One lane: its records, each window of them in an order of its own.

    While a window is given out the next one is read, a record for a record, so that there are
    never more in memory than a window has. The windows of the lanes begin at different places:
    no two lanes have to fill theirs at one time.

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
        self._next: list[Any] = []

    def __next__(self) -> Any:
        block = self._loaded()
        if not block:
            raise StopIteration
        row = int(self._order[self._given])
        item, block[row] = block[row], None
        self._given += 1
        due = self._window * self._given // len(block) - len(self._next)
        if self._given < len(block):
            self._next.extend(islice(self.records, max(due, 0)))
        return item

    def skip(self, count: int) -> int:
        """Pass over so many of the lane's records; how many there were."""
        left = count
        while left:
            if self._block and self._given == len(self._block) and not self._next:
                self._first += len(self._block)
                self._size, self._block = self._window, None
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
        """The window at hand, with records to give; empty at the lane's end."""
        if self._block is not None and (not self._block or self._given < len(self._block)):
            return self._block
        if self._block is not None:
            self._first += len(self._block)
            # Only the last window is smaller than it should be, and nothing comes behind it.
            self._size = self._window
        block = self._next
        block.extend(islice(self.records, self._size - len(block)))
        self._block, self._given, self._next = block, 0, []
        self._order = window_order(
            len(block), self._first, lane=self._number, seed=self._seed, epoch=self._epoch
        ) if self._window > 1 else range(len(block))  # fmt: skip
        return block

    def close(self) -> None:
        """Close what is open."""
        self.records.close()


def window_order(length: int, first: int, *, lane: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Rows of a window in the order in which they are given out.

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
    """The records of all lanes from position `start` on, in the order of positions.

    Lanes are moved to their places at once, before the first record is asked for.
    """
    first, alive = _place(lanes, start)
    return _in_turn(alive, first)


def _in_turn(alive: list[Lane], first: int) -> Iterator[Any]:
    """Round after round, the first of them from lane `first` of those alive on."""
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
    """Records that each lane gives to the first `start` positions, and the rounds that are whole.

    Lanes of unknown length count as endless.
    """
    left, rounds = start, 0
    ends = sorted({length for length in lengths if length is not None})
    for end in [*ends, None]:
        alive = sum(length is None or length > rounds for length in lengths)
        if not alive:
            break
        whole = left // alive if end is None else min(left // alive, end - rounds)
        rounds += whole
        left -= whole * alive
        if end is None or rounds < end:
            break
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
