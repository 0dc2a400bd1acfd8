"""What a user's sampler may give, and what becomes of a stream's iterator."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.core.contracts import DirectSampler, Sampler
from penstock.pipeline.loader.plan import BatchPlan, indexed_tasks
from tests.pipeline.loader.fakes import FakeDataset, FakeStream, make_loader


class Given(Sampler):
    """A sampler that answers every call with the same function of the positions."""

    def __init__(self, answer):
        self.answer = answer

    def __len__(self):
        return 40

    def indices(self, epoch, start, stop):
        return self.answer(np.arange(start, stop))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda p: p[:-1], r"gave int64 \[7\], expected int64 \[8\]"),
        (lambda p: p / 2, r"gave float64 \[8\]"),
        (lambda p: p - 1, "has record -1, expected 0 to 39"),
        (lambda p: p + 36, "has record 40, expected 0 to 39"),
    ],
)
def test_a_sampler_that_gives_no_records_is_told_so(answer, message):
    with pytest.raises(ValueError, match=message):
        next(iter(make_loader(FakeDataset(40), sampler=Given(answer), batch_size=8)))


def test_a_list_of_records_is_taken():
    loader = make_loader(FakeDataset(40), sampler=Given(lambda p: p[::-1].tolist()), batch_size=8)
    assert next(iter(loader))["index"].tolist() == [7, 6, 5, 4, 3, 2, 1, 0]


class Counting(DirectSampler):
    """A sampler that counts how often the loader calls it."""

    def __init__(self, n):
        self._n = n
        self.calls = 0

    def __len__(self):
        return self._n

    def at(self, epoch, positions):
        self.calls += 1
        return (positions * 7 + epoch) % self._n


class Indexed(Sampler):
    """The same order, by ranges of positions alone."""

    def __init__(self, n):
        self._counting = Counting(n)

    @property
    def calls(self):
        return self._counting.calls

    def __len__(self):
        return len(self._counting)

    def indices(self, epoch, start, stop):
        return self._counting.indices(epoch, start, stop)


@pytest.mark.parametrize("tail", ["drop", "keep", "pad"])
@pytest.mark.parametrize(("world_size", "rank"), [(1, 0), (3, 0), (3, 2)])
def test_many_batches_are_asked_for_at_once_and_are_the_same(tail, world_size, rank):
    plan = BatchPlan(5003, batch_size=24, tail=tail, world_size=world_size, rank=rank)
    tasks, calls = [], []
    for kind in (Counting, Indexed):
        sampler = kind(5003)
        found = indexed_tasks(plan, sampler, 5003, epoch=3, start=5, quarantine=frozenset())
        tasks.append([repr(task) for task in found])
        calls.append(sampler.calls)
    assert tasks[0] == tasks[1]
    assert len(tasks[0]) == plan.num_batches - 5
    assert calls[0] <= 5003 // world_size // 1000 + 8 < calls[1]


def test_positions_asked_for_at_once_are_checked():
    sampler = Counting(40)
    sampler.at = lambda epoch, positions: positions + 1
    with pytest.raises(ValueError, match=r"Counting has record 40, expected 0 to"):
        list(make_loader(FakeDataset(40), sampler=sampler, batch_size=8))


class Items:
    """A user's iterator, which has something to close."""

    def __init__(self, items):
        self.items, self.is_closed = items, False

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.items)

    def close(self):
        self.is_closed = True


class Closing(FakeStream):
    def __init__(self, n):
        super().__init__(n)
        self.opened = []

    def open(self, epoch, start):
        self.opened.append(Items(super().open(epoch, start)))
        return self.opened[-1]


@pytest.mark.parametrize(("drop_last", "first", "opened"), [(False, 0, 1), ("pad", 1, 2)])
def test_a_stream_is_closed_when_no_more_of_it_is_wanted(drop_last, first, opened):
    stream = Closing(37)
    loader = make_loader(stream, drop_last=drop_last)
    loader.load_state_dict(loader.state_dict() | {"next_batch": first})
    batches = iter(loader)
    next(batches)
    for _ in range(opened - 1):  # to the end, which is filled up
        assert len(list(batches)) == 3
    assert len(stream.opened) == opened, "padding is of the epoch's first items"
    batches.close()
    assert all(items.is_closed for items in stream.opened)
