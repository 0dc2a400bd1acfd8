"""Large records of a batch are read a piece at a time, and the batches stay the same."""

import numpy as np
import pytest

from penstock.pipeline.loader import compute as pieces
from tests.pipeline.loader.fakes import FakeDataset, digests, make_loader
from tests.pipeline.loader.staged import RowsCollated, StagedFake

LIMIT = 1000


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(pieces, "_PIECE_BYTES", LIMIT)


def sized(n, sizes, **settings):
    dataset = StagedFake(n, **settings)
    held = np.resize(np.asarray(sizes, np.uint32), n)
    dataset.held_bytes = lambda indices: held[indices]
    return dataset


@pytest.mark.parametrize("settings", [{}, {"engine": "threads", "num_workers": 2}])
def test_the_batches_are_the_same_and_no_more_is_held(settings):
    held = []
    dataset = sized(80, [300, 400, 250], bad=(9, 41), on_read=held.append)
    changes = {**settings, "collate": RowsCollated(), "max_error_rate": 1, "across_epochs": False}
    with make_loader(dataset, **changes) as loader:
        got = digests(loader, 3)
    assert got == digests(make_loader(FakeDataset(80, bad=(9, 41)), max_error_rate=1), 3)
    assert max(map(len, held)) <= 5
