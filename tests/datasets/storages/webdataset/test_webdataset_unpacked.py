"""Compressed tar shards by place: the samples of plain ones, unpacked once, within limits."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pyarrow
import pytest

from penstock.datasets.storages.webdataset import WebDatasetStorage
from tests.datasets.storages.checks import check_with_copy, keys, refusal
from tests.datasets.storages.webdataset.tar_samples import expected, put, read, samples

PACK = {
    ".gz": gzip.compress, "tgz": gzip.compress, "tar": bytes,
    "zst": lambda content: pyarrow.Codec("zstd").compress(content, asbytes=True),
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/penstock/computed"


def shards(folder: Path, endings: str) -> Path:
    """20 samples in a shard for each ending."""
    folder.mkdir(exist_ok=True)
    for n, ending in enumerate(endings.split()):
        plain = Path(put(folder / "plain", samples(20, start=n * 20)))
        (folder / f"s-{n:03d}.{ending}").write_bytes(PACK[ending[-3:]](plain.read_bytes()))
        plain.unlink()
    return folder


def test_the_contract(tmp_path):
    folder = shards(tmp_path / "a", "tar.gz tgz tar.zst tar")
    check_with_copy(WebDatasetStorage, folder, expected(samples(80)))


def test_they_are_unpacked_once_and_again_when_they_changed_or_the_copies_are_gone(tmp_path, cache):
    folder = shards(tmp_path / "a", "tar.gz tar.zst")
    storage = WebDatasetStorage(str(folder))
    assert len(storage) == 40
    first = sorted(cache.glob("copy-*.tar"))
    assert len(read(WebDatasetStorage(str(folder)))) == 40
    assert len(first) == 2 and sorted(cache.glob("copy-*.tar")) == first
    shutil.rmtree(cache)
    assert [record.key for record in read(WebDatasetStorage(str(folder)))] == keys(storage)
    plain = Path(put(tmp_path / "new.tar", samples(3, start=90)))
    (folder / "s-000.tar.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert keys(WebDatasetStorage(str(folder)))[:4] == [f"dir/{n:03d}" for n in (90, 91, 92, 20)]


@pytest.mark.parametrize("ending", ["tar.gz", "tar.zst"])
@pytest.mark.parametrize("damage", ["cut", "behind"])
def test_damage_is_one_line(ending, damage, tmp_path, cache):
    [path] = shards(tmp_path / "a", ending).iterdir()
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if damage == "cut" else content + b"garbage")
    said = rf"s-000\.{ending}: its compression is damaged or cut off: [^\n]*; copy it again$"
    refusal(WebDatasetStorage(str(path)), said)
    assert not list(cache.glob("*copy*.tar*")), "nothing is left of it"
