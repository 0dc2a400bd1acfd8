"""A cache that is smaller than the data keeps the best part; what is asked of a server."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import build_loader, compose
from penstock.datasets.storages.webdataset import WebDatasetWriter
from penstock.datasets.writing import write_storage
from tests.contracts.records import ListedRecords
from tests.object_store import object_store

COUNT, SIZE = 400, 10_000
CACHES = {
    "disk": ["dataset/cache=disk", f"dataset.cache.max_bytes={COUNT * SIZE // 2}"],
    "ram": ["dataset/cache=ram", f"dataset.cache.max_bytes={COUNT * SIZE // 2}"],
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    content = {f"{n:04d}": {"image": bytes([n % 251]) * SIZE, "label": 0} for n in range(COUNT)}
    write_storage(
        WebDatasetWriter(shard_records=50), folder / "all", ListedRecords(content, ("a",))
    )
    return folder / "all"


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def given(path, *more):
    return compose([
        "dataset=webdataset", f"dataset.storage.path={path}", "augment=as_is", "collate=list",
        "dataset/decode=raw", "dataset.val_fraction=0", "loader=inline", "loader.batch_size=8",
        "loader.across_epochs=false", *more,
    ])  # fmt: skip


def hits_of(config, epochs):
    """The share of the records of each epoch that were in the cache."""
    shares = []
    with build_loader(config, "train") as loader:
        for _ in range(epochs):
            before = loader.stats.times.hits
            count = sum(len(batch["key"]) for batch in loader)
            shares.append((loader.stats.times.hits - before) / count)
    return shares


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("sampler", ["random", "shard_shuffle"])
def test_half_of_the_data_hits_half_of_the_time_from_the_second_epoch_on(shards, cache, sampler):
    first, *later = hits_of(given(shards, f"sampler={sampler}", *CACHES[cache]), 4)
    assert first == 0
    assert len(set(later)) == 1, "nothing that it holds gives way"
    assert later[0] == pytest.approx(0.48, abs=0.03)


@pytest.mark.parametrize("cache", CACHES)
def test_of_uneven_uses_it_keeps_the_records_that_are_drawn_most(shards, cache, tmp_path):
    weights = np.exp(np.random.default_rng(0).normal(0, 1, COUNT))
    np.save(tmp_path / "weights.npy", weights)
    drawn = ["sampler=weighted", f"sampler.weights={tmp_path}/weights.npy"]
    shares = hits_of(given(shards, *drawn, *CACHES[cache]), 10)
    best = np.sort(weights)[-int(0.48 * COUNT):].sum() / weights.sum()  # fmt: skip
    assert np.mean(shares[4:]) == pytest.approx(best, abs=0.04)
    assert best > 0.8, "those that come first hit 0.75"


def test_ranks_of_a_machine_share_what_lies_on_its_disk(shards, monkeypatch):
    with object_store(monkeypatch.setenv) as store:
        config = given(store.put(shards, "ranks"))
        loaders = [build_loader(config, "train", rank=rank, world_size=2) for rank in range(2)]
        requests = []
        for _ in range(2):
            before, keys = len(store.requests), set()
            for loader in loaders:
                keys |= {key for batch in loader for key in batch["key"]}
            requests.append(len(store.requests) - before)
            assert len(keys) == COUNT
        for loader in loaders:
            loader.close()
    assert requests[0] >= COUNT / 2, "neighbours are asked for at once"
    assert requests[1] == 0, "each rank has other records than before, and asks for none"


def test_once_the_index_is_known_the_first_batch_asks_for_its_records_alone(shards, monkeypatch):
    with object_store(monkeypatch.setenv) as store:
        config = given(store.put(shards, "first"), "dataset/cache=none")
        build_loader(config, "train").close()
        before = len(store.requests)
        with build_loader(config, "train") as loader:
            known = len(store.requests)
            next(iter(loader))
            first = store.requests[known:]
    assert known - before <= 4, "what is there, and whether it has changed"
    assert 0 < len(first) <= 8, "side by side: a round trip"
    assert all(method == "GET" and key.endswith(".tar") for method, key in first)
