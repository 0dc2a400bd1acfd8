"""Shuffling by shards: each record once, shards stay together, groups of rows are read once."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import build_loader, compose
from penstock.pipeline.samplers.shard_shuffle import ShardShuffleSampler
from tests.contracts.sampler import check_sampler
from tests.object_store import object_store

SIZES = {
    "alike": [10] * 30,
    "of any size": [1, 40, 3, 3, 90, 2, 17, 1, 1, 55, 8],
    "two": [5, 9],
    "many": [3] * 700,
}


def sampler_of(sizes, **arguments):
    firsts = np.cumsum([0, *sizes[:-1]])
    return ShardShuffleSampler(sum(sizes), 7, lambda: firsts, **arguments)


@pytest.mark.parametrize("window", [1, 2, 3, 16, 1000])
@pytest.mark.parametrize("sizes", SIZES)
def test_it_is_a_permutation_of_any_shards(sizes, window):
    sampler = sampler_of(SIZES[sizes], window=window)
    check_sampler(sampler, n=sum(SIZES[sizes]), shuffles=True, exactly_once=True)
    rng = np.random.default_rng(0)
    anywhere = rng.permutation(len(sampler))
    whole = sampler.indices(3, 0, len(sampler))
    assert np.array_equal(sampler.at(3, anywhere), whole[anywhere])


@pytest.mark.parametrize("n", [1, 7, 1000, 1001, 4321])
def test_data_without_shards_is_cut_into_runs(n):
    one = ShardShuffleSampler(n, 0, lambda: np.array([0]), shard_records=100, window=2)
    check_sampler(one, n=n, shuffles=n > 1, exactly_once=True)
    none = ShardShuffleSampler(n, 0, None, shard_records=100, window=2)
    order = none.indices(0, 0, n)
    assert np.array_equal(order, one.indices(0, 0, n)), "one file has no shards to speak of"
    for start in range(0, n, 200):
        assert np.unique(order[start : start + 200] // 100).size <= 4


def test_a_window_holds_whole_shards_and_mixes_them():
    sampler = sampler_of([100] * 64, window=8)
    windows = sampler.indices(0, 0, 6400).reshape(8, 800) // 100
    assert [np.unique(window).size for window in windows] == [8] * 8
    first = [np.unique(window[:100]).size for window in windows]
    assert min(first) == 8, "each shard is among the first eighth of its window"
    order = np.concatenate([np.unique(window) for window in windows])
    assert not np.array_equal(order, np.sort(order)), "the windows are of shards from everywhere"


def test_the_order_is_that_of_the_shards():
    a, b = sampler_of([10] * 6), sampler_of([12] * 5)
    assert a.fingerprint() != b.fingerprint() == sampler_of([12] * 5).fingerprint()


@pytest.fixture
def tables(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    (tmp_path / "tables").mkdir()
    for number in range(4):
        rows = {"x": [rng.bytes(4000) for _ in range(30)], "label": [number] * 30}
        pq.write_table(
            pa.table(rows), tmp_path / f"tables/{number}.parquet", row_group_size=10,
            compression="none", write_statistics=False, use_dictionary=False,
        )  # fmt: skip
    return tmp_path / "tables"


def given(path, *more):
    return compose([
        "dataset=parquet", f"dataset.storage.path={path}", "augment=as_is", "collate=list",
        "dataset/decode=raw", "loader=inline", "loader.batch_size=20", "loader.drop_last=false",
        "dataset/cache=none", "dataset.val_fraction=0.2", *more,
    ])  # fmt: skip


def keys_of(config, **arguments):
    with build_loader(config, "train", **arguments) as loader:
        return [key for batch in loader for key in batch["key"]], loader.stats


def test_each_group_of_rows_is_fetched_once_in_an_epoch(tables, monkeypatch):
    with object_store(monkeypatch.setenv) as store:
        url = store.put(tables, "tables")
        small = "dataset.storage.cache_bytes=300000"  # seven groups of twelve
        requests = {}
        for sampler in ("random", "shard_shuffle"):
            more = ["sampler.window=3"] if sampler == "shard_shuffle" else []
            with build_loader(given(url, small, f"sampler={sampler}", *more), "train") as loader:
                before = len(store.requests)
                keys = [key for batch in loader for key in batch["key"]]
                requests[sampler] = len(store.requests) - before
            assert len(set(keys)) == len(keys) > 80
    assert requests["shard_shuffle"] <= 12 + 4, "the groups, and what opens the files"
    assert requests["random"] > 2 * 16


def test_a_split_knows_the_shards_of_its_records(tables):
    window = ["sampler=shard_shuffle", "sampler.window=1"]
    keys, _ = keys_of(given(tables, *window))
    groups = np.array(keys, np.int64) // 10
    assert np.count_nonzero(np.diff(groups)) == np.unique(groups).size - 1 == 11


def test_ranks_share_it(tables):
    config = given(tables, "sampler=shard_shuffle", "sampler.window=4")
    with build_loader(config, "train") as loader:
        batches = [batch["key"] for batch in loader]
    for rank in range(2):
        with build_loader(config, "train", rank=rank, world_size=2) as loader:
            for mine, batch in zip(loader, batches, strict=True):
                half = len(batch) // 2
                share = (batch[:half], batch[half:])[rank]
                assert [k for k, v in zip(mine["key"], mine["valid"], strict=True) if v] == share


def test_a_source_of_a_mix_may_have_it(tables):
    parts = []
    for name in ("photos", "packed"):
        key = f"dataset.sources.{name}"
        parts += [f"{key}.dataset=parquet", f"{key}.dataset.storage.path={tables}"]
        parts += [f"{key}.dataset.decode=raw"]
    near = [
        "dataset.sources.photos.sampler=shard_shuffle",
        "dataset.sources.photos.sampler.window=1",
    ]
    config = compose(["dataset=mix", *parts, *near, "augment=as_is", "collate=list",
                      "loader=inline", "loader.batch_size=20"])  # fmt: skip
    with build_loader(config, "train") as loader:
        groups = [
            int(key) // 10
            for batch in loader
            for key, source in zip(batch["key"], batch["source"].tolist(), strict=True)
            if source == 0
        ]
    assert len(groups) > 80
    assert np.count_nonzero(np.diff(groups[:80])) <= 11, "its first epoch"
