"""What is read of tar shards to know what they hold, by how many processes, and when again."""

import os
import shutil

import pytest

from datasets.formats import tar_indexing, tar_shards
from datasets.storages.webdataset import WebDatasetStorage
from tests.datasets.storages.tar_samples import expected, keys, put, read, samples


def test_a_second_start_looks_again_only_if_a_shard_changed(tmp_path, monkeypatch):
    path = put(tmp_path / "a.tar", samples(6))
    first = WebDatasetStorage(path).fingerprint()
    with monkeypatch.context() as patch:
        patch.setattr("datasets.storages.webdataset.scan_shards", None)
        assert WebDatasetStorage(path).fingerprint() == first
    put(tmp_path / "a.tar", samples(7))
    assert len(WebDatasetStorage(path)) == 7


def test_only_headers_and_labels_are_read_of_large_samples(tmp_path, monkeypatch):
    content = [(str(n), {"cls": b"1", "jpg": bytes(300_000)}) for n in range(20)]
    path = put(tmp_path / "a.tar", content)
    sizes = []
    read_upto = tar_shards.SharedFile.read_upto
    monkeypatch.setattr(
        tar_shards.SharedFile, "read_upto",
        lambda file, at, size: sizes.append(size) or read_upto(file, at, size),
    )  # fmt: skip
    assert len(WebDatasetStorage(path)) == 20
    assert sum(sizes) < 1_000_000 < os.path.getsize(path)


def test_other_processes_find_the_same(tmp_path, monkeypatch, cache):
    for n in range(5):
        put(tmp_path / f"s-{n}.tar", samples(4, start=n * 4))
    alone = WebDatasetStorage(str(tmp_path)).fingerprint()
    monkeypatch.setattr(tar_indexing, "_WORTH_S", 0)
    monkeypatch.setattr(tar_indexing, "usable_cores", lambda: 2)
    scan, here = tar_indexing.scan_shard, []
    monkeypatch.setattr(tar_indexing, "scan_shard", lambda *a: here.append(a) or scan(*a))
    shutil.rmtree(cache)
    storage = WebDatasetStorage(str(tmp_path))
    assert storage.fingerprint() == alone
    assert len(here) == 1, "the first shard, by which the time is estimated"
    assert [record.fields for record in read(storage)] == [f for _, f in expected(samples(20))]
    os.truncate(tmp_path / "s-3.tar", 700)
    with pytest.raises(ValueError, match=r"webdataset .*: s-3.tar: .*copy it again"):
        len(WebDatasetStorage(str(tmp_path)))


def test_where_another_process_fails_it_is_done_here(tmp_path, monkeypatch):
    for n in range(4):
        put(tmp_path / f"s-{n}.tar", samples(4, start=n * 4))
    monkeypatch.setattr(tar_indexing, "_WORTH_S", 0)
    monkeypatch.setattr(tar_indexing, "usable_cores", lambda: 2)
    monkeypatch.setattr(tar_indexing.sys, "executable", shutil.which("false"))
    assert keys(WebDatasetStorage(str(tmp_path))) == [key for key, _ in samples(16)]
