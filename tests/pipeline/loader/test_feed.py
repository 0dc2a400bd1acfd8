"""What a user's sampler may give."""

from __future__ import annotations

import numpy as np
import pytest

from tests.pipeline.loader.fakes import FakeDataset, make_loader


class Given:
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
