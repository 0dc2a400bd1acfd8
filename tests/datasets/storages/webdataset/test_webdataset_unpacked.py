"""Compressed tar shards by place: the samples of plain ones, unpacked once, within limits."""

from __future__ import annotations

import gzip
import logging
import multiprocessing
import os
import shutil
import subprocess
from pathlib import Path

import pyarrow
import pytest

from penstock.datasets.records.splits import StorageRecipe, open_split
from penstock.datasets.storages.webdataset import WebDatasetStorage
from tests.contracts.storage import check_storage, summary
from tests.datasets.storages.webdataset.tar_samples import expected, keys, put, read, samples


def zstd(content: bytes) -> bytes:
    return pyarrow.Codec("zstd").compress(content, asbytes=True)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/penstock/computed"


def shards(folder: Path, endings: str) -> Path:
    """20 samples in a shard for each ending."""
    pack = {".gz": gzip.compress, "tgz": gzip.compress, "zst": zstd, "tar": bytes}
    folder.mkdir(exist_ok=True)
    for n, ending in enumerate(endings.split()):
        plain = Path(put(folder / "plain", samples(20, start=n * 20)))
        (folder / f"s-{n:03d}.{ending}").write_bytes(pack[ending[-3:]](plain.read_bytes()))
        plain.unlink()
    return folder


def copies(cache: Path) -> list[Path]:
    return sorted(cache.glob("copy-*.tar"))


def test_the_contract(tmp_path):
    folder = shards(tmp_path / "a", "tar.gz tgz tar.zst tar")
    shutil.copytree(folder, tmp_path / "b")
    check_storage(
        lambda: WebDatasetStorage(str(folder)),
        expected(samples(80)),
        make_copy=lambda: WebDatasetStorage(str(tmp_path / "b")),
    )


def test_they_are_unpacked_once_and_again_when_they_changed_or_the_copies_are_gone(
    tmp_path, cache, caplog, monkeypatch
):
    folder = shards(tmp_path / "a", "tar.gz tar.zst")
    monkeypatch.setattr("penstock.core.machine_cache._SAY_AFTER_S", 0.0)
    with caplog.at_level(logging.INFO):
        storage = WebDatasetStorage(str(folder))
        assert len(storage) == 40
    assert f"computed the unpacked copy of {folder}/s-000.tar.gz in" in caplog.text
    first = copies(cache)
    assert len(first) == 2 and summary(read(storage)) == summary(read(storage))
    again = WebDatasetStorage(str(folder))
    assert len(read(again)) == 40 and copies(cache) == first
    shutil.rmtree(cache)
    assert [record.key for record in read(WebDatasetStorage(str(folder)))] == keys(storage)
    plain = Path(put(tmp_path / "new.tar", samples(3, start=90)))
    (folder / "s-000.tar.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert keys(WebDatasetStorage(str(folder)))[:4] == [f"dir/{n:03d}" for n in (90, 91, 92, 20)]
    assert len(copies(cache)) == 3


def _read_keys(path: str) -> list[str]:
    return [record.key for record in read(WebDatasetStorage(path))]


def test_processes_that_start_together_unpack_once(tmp_path, cache):
    folder = shards(tmp_path / "a", "tar.gz")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(_read_keys, [str(folder)] * 4, chunksize=1)
    assert all(each == [key for key, _ in samples(20)] for each in found)
    assert [path.name[-6:] for path in copies(cache)] == ["-1.tar"]


@pytest.mark.parametrize("ending", ["tar.gz", "tar.zst"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "behind"])
def test_damage_is_one_line(ending, damage, tmp_path, cache):
    [path] = shards(tmp_path / "a", ending).iterdir()
    content = bytearray(path.read_bytes())
    at = 5  # the frame of zstd, which has a checksum only where its writer gave it one
    if damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        at = at if ending == "tar.zst" else len(content) // 2
        content[at : at + 40] = bytes(byte ^ 255 for byte in content[at : at + 40])
    else:
        content += b"garbage"
    path.write_bytes(content)
    said = rf"s-000\.{ending}: its compression is damaged or cut off: .*; copy it again$"
    with pytest.raises(ValueError, match=said) as error:
        len(WebDatasetStorage(str(path)))
    assert "\n" not in str(error.value)
    assert not copies(cache) and not list(cache.glob(".copy*")), "nothing is left of it"


def test_a_disk_that_would_be_full_is_one_line(tmp_path, cache, monkeypatch):
    folder = shards(tmp_path / "a", "tar.gz")
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ValueError, match=r"No space left on device.*set XDG_CACHE_HOME") as error:
        len(WebDatasetStorage(str(folder)))
    assert "\n" not in str(error.value) and not list(cache.glob(".copy*"))


def test_parts_and_keys_are_those_of_plain_shards(tmp_path):
    for part, ending in (("train", "tar.gz"), ("val", "tar.gz")):
        shards(tmp_path / part, ending)
        os.rename(tmp_path / part / "s-000.tar.gz", tmp_path / f"{part}-000.tar.gz")
    data = tmp_path / "data"
    data.mkdir()
    for path in tmp_path.glob("*.tar.gz"):
        path.rename(data / path.name)
    recipe = StorageRecipe(WebDatasetStorage, {"path": str(data), "shard_keys": True})
    for part in ("train", "val"):
        found = open_split(recipe, split=part, val_fraction=0.5)
        assert keys(found)[:2] == [f"{part}-000/dir/000", f"{part}-000/dir/001"]
        assert len(found) == 20


def test_those_that_the_zstd_tool_made(tmp_path):
    if shutil.which("zstd") is None:
        pytest.skip("there is no zstd")
    [path] = shards(tmp_path / "a", "tar").iterdir()
    subprocess.run(["zstd", "-q", "--rm", "--long=27", path], check=True)
    assert _read_keys(str(tmp_path / "a")) == [key for key, _ in samples(20)]
