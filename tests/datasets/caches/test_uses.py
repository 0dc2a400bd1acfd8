"""A cache that is smaller than the data keeps the best part; what is asked of a server."""

from __future__ import annotations

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
    """Return the share of the records that hit the cache, by epoch."""
    shares = []
    with build_loader(config, "train") as loader:
        for _ in range(epochs):
            before = loader.stats.times.hits
            count = sum(len(batch["key"]) for batch in loader)
            shares.append((loader.stats.times.hits - before) / count)
    return shares


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("sampler", ["random", "shard_shuffle"])
def test_a_cache_of_half_of_the_data_hits_half_of_the_reads(shards, cache, sampler):
    first, *later = hits_of(given(shards, f"sampler={sampler}", *CACHES[cache]), 4)
    assert first == 0
    assert len(set(later)) == 1, "nothing that it holds gives way"
    assert later[0] == pytest.approx(0.48, abs=0.03)


def test_ranks_of_a_machine_share_the_cache_of_remote_files(shards, monkeypatch):
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
    assert requests[0] >= COUNT / 2, "one request reads neighbours"
    assert requests[1] == 0, "the ranks exchange their records without a request"
