"""Large records of a batch are read a piece at a time, and the batches stay the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.loader.compute import by_sample as pieces
from penstock.pipeline.loader.compute.by_sample import pieces_of
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


@given(sizes=st.lists(st.integers(0, 3 * LIMIT), min_size=1, max_size=60), seed=st.integers(0, 99))
def test_pieces_are_the_batch_and_hold_little_more_than_the_limit(sizes, seed):
    indices = np.random.default_rng(seed).permutation(len(sizes))
    cut = pieces_of(np.asarray(sizes)[indices], indices.size)
    assert np.array_equal(np.concatenate([indices[piece] for piece in cut]), indices)
    for piece in cut:
        its_sizes = np.asarray(sizes)[indices[piece]]
        assert its_sizes.size
        assert its_sizes.sum() <= LIMIT + (its_sizes[0] + its_sizes[-1]) / 2
    if sum(sizes) <= LIMIT:
        assert len(cut) == 1


def test_without_sizes_a_batch_is_read_at_once():
    assert pieces_of(None, 8) == [slice(0, 8)]


@pytest.mark.parametrize("settings", [{}, {"engine": "threads", "num_workers": 2}])
def test_the_batches_are_the_same_and_no_more_is_held(settings):
    held = []
    dataset = sized(80, [300, 400, 250], bad=(9, 41), on_read=held.append)
    changes = {**settings, "collate": RowsCollated(), "max_error_rate": 1, "across_epochs": False}
    with make_loader(dataset, **changes) as loader:
        got = digests(loader, 3)
    assert got == digests(make_loader(FakeDataset(80, bad=(9, 41)), max_error_rate=1), 3)
    assert max(map(len, held)) <= 5
