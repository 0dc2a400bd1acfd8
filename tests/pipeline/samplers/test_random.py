"""Keyed permutations: uniform, of any size, endless, and by shards that stay together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import build_loader, compose
from penstock.core import rng
from penstock.pipeline.samplers.random import InfiniteSampler, RandomSampler, ShardShuffleSampler
from tests.contracts.sampler import check_sampler
from tests.pipeline.samplers.test_all import fits


@pytest.mark.parametrize("n", [11, 70_001])
def test_random_is_uniform_by_position_and_by_pair(n, monkeypatch):
    monkeypatch.setattr(rng, "SMALL", 4 if n == 11 else rng.SMALL)  # the network, on a small set
    epochs, bins = (6_000 if n == 11 else 40), max(1, n // 10)
    counts, pairs = np.zeros((11, 11)), np.zeros((11, 11))
    place = np.minimum(np.arange(n) // bins, 10)
    for epoch in range(epochs):
        cells = np.minimum(RandomSampler(n, seed=5).indices(epoch, 0, n) // bins, 10)
        np.add.at(counts, (place, cells), 1)
        np.add.at(pairs, (cells[:-1], cells[1:]), 1)
    if n == 11:
        assert fits(counts.ravel(), np.full(121, epochs / 11))
        off = ~np.eye(11, dtype=bool)
        assert np.diag(pairs).sum() == 0
        assert fits(pairs[off], np.full(110, epochs * 10 / 110))
    else:
        expected = (np.outer(bincount := np.bincount(place), bincount) / n * epochs)[:10, :10]
        assert fits(counts[:10, :10].ravel(), expected.ravel())
        assert fits(pairs[:10, :10].ravel(), expected.ravel())


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 9))
def test_infinite_goes_through_the_data_again_and_again(n, batch_size, steps):
    sampler = InfiniteSampler(n, seed=5, batch_size=batch_size, steps=steps)
    assert len(sampler) == batch_size * steps
    found = np.concatenate([sampler.indices(epoch, 0, len(sampler)) for epoch in range(4)])
    passes = [RandomSampler(n, seed=5).indices(e, 0, n) for e in range(-(-found.size // n))]
    assert np.array_equal(found, np.concatenate(passes)[: found.size])
    assert len(InfiniteSampler(53, batch_size=8)) == 56


SIZES = {
    "alike": [10] * 30,
    "of any size": [1, 40, 3, 3, 90, 2, 17, 1, 1, 55, 8],
    "two": [5, 9],
    "many": [3] * 700,
}


def sharded(sizes, **arguments):
    firsts = np.cumsum([0, *sizes[:-1]])
    return ShardShuffleSampler(sum(sizes), 7, lambda: firsts, **arguments)


@pytest.mark.parametrize("window", [1, 3, 1000])
@pytest.mark.parametrize("sizes", SIZES)
def test_shards_of_any_sizes_are_permuted(sizes, window):
    sampler = sharded(SIZES[sizes], window=window)
    check_sampler(sampler, n=sum(SIZES[sizes]), shuffles=True, exactly_once=True)
    anywhere = np.random.default_rng(0).permutation(len(sampler))
    assert np.array_equal(sampler.at(3, anywhere), sampler.indices(3, 0, len(sampler))[anywhere])


@pytest.mark.parametrize("n", [1, 1000, 1001, 4321])
def test_data_without_shards_is_cut_into_runs(n):
    one = ShardShuffleSampler(n, 0, lambda: np.array([0]), shard_records=100, window=2)
    order = ShardShuffleSampler(n, 0, None, shard_records=100, window=2).indices(0, 0, n)
    assert np.array_equal(order, one.indices(0, 0, n)), "one file has no shards to speak of"
    assert np.array_equal(np.sort(order), np.arange(n))
    for start in range(0, n, 200):
        assert np.unique(order[start : start + 200] // 100).size <= 4


def test_a_window_holds_whole_shards_and_mixes_them():
    windows = sharded([100] * 64, window=8).indices(0, 0, 6400).reshape(8, 800) // 100
    assert [np.unique(window).size for window in windows] == [8] * 8
    first = [np.unique(window[:100]).size for window in windows]
    assert min(first) == 8, "each shard is among the first eighth of its window"
    order = np.concatenate([np.unique(window) for window in windows])
    assert not np.array_equal(order, np.sort(order)), "the windows are of shards from everywhere"


def test_a_split_knows_the_shards_of_its_records(tmp_path):
    """Each group of rows is read once in an epoch."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for number in range(4):
        rows = pa.table({"x": [b"x"] * 30, "label": [number] * 30})
        pq.write_table(rows, tmp_path / f"{number}.parquet", row_group_size=10)
    config = compose([
        "dataset=parquet", f"dataset.storage.path={tmp_path}", "augment=as_is", "collate=list",
        "dataset/decode=raw", "loader=inline", "loader.batch_size=20", "loader.drop_last=false",
        "dataset.val_fraction=0.2", "sampler=shard_shuffle", "sampler.window=1",
    ])  # fmt: skip
    with build_loader(config, "train") as loader:
        groups = np.array([key for batch in loader for key in batch["key"]], np.int64) // 10
    assert np.count_nonzero(np.diff(groups)) == np.unique(groups).size - 1 == 11
