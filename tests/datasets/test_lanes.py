"""The order of a stream: every record once, in the same order from any position on."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.contracts import Source
from penstock.core.sample import Record
from penstock.datasets.streams.lanes import Lanes, window_order

SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=9)
LANES = st.integers(1, 6)
WINDOW = st.integers(0, 7)


class Shards(Source):
    """Shards of given sizes, which it may know; it notes opened and closed shards."""

    def __init__(self, sizes: list[int], counts: bool = False) -> None:
        self.sizes = sizes
        self.counts = counts
        self.opened: list[tuple[int, int]] = []
        self.closed = 0

    def shards(self, epoch: int) -> range:
        return range(len(self.sizes))

    def count(self, shard: int) -> int | None:
        return self.sizes[shard] if self.counts else None

    def read(self, shard: int, start: int) -> Any:
        self.opened.append((shard, start))
        try:
            for number in range(start, self.sizes[shard]):
                yield Record(-1, f"{shard}-{number}", {})
        finally:
            self.closed += 1

    def fingerprint(self) -> str:
        return ""


def read(source: Shards, lanes: int, window: int, start: int = 0, *, keep: Any = None) -> Any:
    shards = range(len(source.sizes))
    order = Lanes(source=source, count=lanes, keep=keep, window=window, seed=1, epoch=2)
    return order.read({n: shards[n::lanes] for n in range(min(lanes, len(shards)))}, start)


def keys(sizes: list[int], lanes: int, window: int, start: int = 0, **more: Any) -> list[str]:
    source = Shards(sizes, more.pop("counts", False))
    return [item.key for item in read(source, lanes, window, start, **more)]


def expected(sizes: list[int], lanes: int, window: int) -> list[str]:
    """Return the order by the documented rule, from whole lists."""
    rows = []
    for lane in range(lanes):
        records = [f"{s}-{n}" for s in range(lane, len(sizes), lanes) for n in range(sizes[s])]
        size, first, number = -(-max(window, 1) * (lane + 1) // lanes), 0, 0
        while block := records[first : first + size]:
            order = window_order(len(block), first, lane=lane, seed=1, epoch=2)
            for row in order if window > 1 else range(len(block)):
                rows.append((number, lane, block[row]))
                number += 1
            first, size = first + len(block), max(window, 1)
    return [key for _, _, key in sorted(rows)]


@given(SIZES, LANES, WINDOW, st.booleans())
def test_lanes_take_turns_from_any_position_on(sizes, lanes, window, counts):
    whole = expected(sizes, lanes, window)
    assert sorted(whole) == sorted(f"{s}-{n}" for s, size in enumerate(sizes) for n in range(size))
    for start in range(len(whole) + 2):
        assert keys(sizes, lanes, window, start, counts=counts) == whole[start:]


@settings(max_examples=60)
@given(SIZES, LANES, WINDOW, st.booleans())
def test_two_splits_share_the_records(sizes, lanes, window, counts):
    def part(val: bool, start: int = 0) -> list[str]:
        more: Any = {"keep": lambda key: (hash(key) % 3 == 0) == val, "counts": counts}
        return keys(sizes, lanes, window, start, **more)

    train = part(False)
    assert sorted(train + part(True)) == sorted(keys(sizes, lanes, window))
    for start in range(len(train)):
        assert part(False, start) == train[start:]


def test_shards_of_known_size_are_not_opened():
    source = Shards([100] * 6, counts=True)
    assert [item.key[:2] for item in islice(read(source, 2, 10, 450), 2)] == ["4-", "5-"]
    assert source.opened == [(4, 25), (5, 20)], "0 to 3 lie before position 400"


def test_no_more_is_read_than_a_window_before_the_first_record():
    source = Shards([1000, 1000])
    made = 0

    def counted(shard: int, start: int) -> Any:
        nonlocal made
        for n in range(1000):
            made += 1
            yield Record(-1, f"{shard}-{n}", {})

    source.read = counted  # type: ignore[method-assign]
    items = read(source, 2, 100)
    for number in range(1, 601):
        next(items)
        assert made <= number + 2 * 100 + 2, "one in for one out"


def test_windows_are_shuffled_evenly():
    places = np.zeros((8, 8), int)
    for first in range(0, 8 * 2000, 8):
        order = window_order(8, first, lane=3, seed=5, epoch=0)
        places[np.arange(8), order] += 1
    chi = ((places - 250) ** 2 / 250).sum()
    assert chi < 90, "49 degrees of freedom; 0.1 % lie above 85"


def test_every_shard_that_was_opened_is_closed():
    source = Shards([3, 0, 5, 2])
    items = read(source, 3, 2)
    next(items)
    items.close()
    assert source.closed == len(source.opened)
    source = Shards([3, 0, 5, 2])
    list(read(source, 3, 2))
    assert source.closed == len(source.opened) == 4


@pytest.mark.parametrize("start", [0, 3])
def test_an_error_does_not_end_a_stream_silently(start):
    class Failing(Shards):
        def read(self, shard: int, start: int) -> Any:
            if shard == 1:
                raise OSError("gone")
            yield from super().read(shard, start)

    with pytest.raises(OSError, match="gone"):
        list(read(Failing([4, 4]), 1, 0, start))
