"""What a user's sampler may give, and what becomes of a stream's iterator."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.core.contracts import Sampler
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
        (lambda p: p - 1, r"gave records -1 to \d+, expected 0 to 39"),
        (lambda p: p + 36, r"gave records \d+ to \d+, expected 0 to 39"),
    ],
)
def test_a_sampler_that_gives_no_records_is_told_so(answer, message):
    with pytest.raises(ValueError, match=message):
        next(iter(make_loader(FakeDataset(40), sampler=Given(answer), batch_size=8)))


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
