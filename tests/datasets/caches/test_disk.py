"""Records on disk: from run to run, by several at once, never a damaged one, within the limit."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from datasets.caches.disk import open_disk_cache
from datasets.caching import disk_store
from tests.cached_records import BAD, EXPECTED, Records
from tests.contracts.storage import check_storage, summary
from tests.memory_storage import MemoryStorage
from tests.photographs import photograph
from transforms.decode.image import ImageDecoder

FORK = multiprocessing.get_context("fork")
EVERY = np.arange(12)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "caches"


def closed(cache) -> None:
    """As at the end of a run."""
    cache.store._opened = None


def same_as_source(cache) -> bool:
    return summary(cache.read(EVERY)) == summary(Records().read(EVERY))


def filled(folder: Path, **arguments):
    cache = open_disk_cache(Records(), path=str(folder), **arguments)
    cache.read(EVERY)
    return cache


def file_of(folder: Path, ending: str) -> Path:
    (path,) = folder.glob(f"*{ending}")
    return path


def test_it_is_the_storage_that_it_wraps(folder):
    check_storage(lambda: open_disk_cache(Records(), path=str(folder)), EXPECTED)


def test_a_later_run_hits_what_an_earlier_one_read(folder):
    closed(filled(folder))
    storage = Records()
    cache = open_disk_cache(storage, path=str(folder))
    records = cache.read(EVERY)
    assert (records.hits, records.misses, records.damaged) == (11, 1, 0)
    assert storage.reads == [[BAD]]
    assert summary(records) == summary(Records().read(EVERY))
    records[0].fields["boxes"][:] = 9
    assert same_as_source(cache)


def test_by_default_it_lies_in_the_users_cache_folder():
    cache = open_disk_cache(Records())
    assert Path(os.environ["XDG_CACHE_HOME"]) in Path(cache.store._arguments["folder"]).parents


def test_other_data_other_decoding_and_another_place_are_other_caches(folder):
    class Elsewhere(Records):
        def __str__(self) -> str:
            return "memory elsewhere"

    filled(folder)
    image = {"image": photograph(40, 50), "label": 1}
    storage = MemoryStorage([image])
    caches = [open_disk_cache(Elsewhere(), path=str(folder))]
    for decode in (ImageDecoder(), ImageDecoder(mode="L"), ImageDecoder(orientation="ignore")):
        caches.append(open_disk_cache(storage, path=str(folder), decode=decode, what="decoded"))
        caches.append(open_disk_cache(storage, path=str(folder), decode=decode))
    names = [cache.store._arguments["name"] for cache in caches]
    assert len(set(names)) == 5, "decoding matters where pixels are kept, and only there"
    for cache in caches:
        assert cache.read(np.array([0])).hits == (cache is not caches[0] and cache in caches[4::2])
    grey = caches[3].read(np.array([0]))
    assert grey.hits == 1
    assert grey[0].fields["image"].shape == (40, 50, 1)
    assert np.array_equal(grey[0].fields["image"], ImageDecoder(mode="L").decode(image["image"]))


@pytest.mark.parametrize("ending", [".data", ".table"])
def test_every_flipped_byte_is_found(folder, ending, caplog):
    closed(filled(folder, max_bytes="2MB"))
    path = file_of(folder, ending)
    whole = path.read_bytes()
    other = file_of(folder, ".table" if ending == ".data" else ".data")
    other_whole = other.read_bytes()
    rng = np.random.default_rng(0)
    for at in sorted({*rng.integers(0, len(whole), 20).tolist(), 0, 17, 20, 40, 4096, 4105, 8196}):
        damaged = bytearray(whole)
        damaged[at] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        other.write_bytes(other_whole)
        try:
            cache = open_disk_cache(Records(), path=str(folder), max_bytes="2MB")
        except ValueError as error:
            assert "is no cache; move it away" in str(error)
            continue
        assert same_as_source(cache), at
        assert same_as_source(cache), at
        closed(cache)


def test_what_is_damaged_is_dropped_counted_said_once_and_kept_anew(folder, caplog):
    closed(filled(folder))
    path = file_of(folder, ".data")
    content = bytearray(path.read_bytes())
    for at in range(100, 60_000, 50):
        content[at] ^= 255
    path.write_bytes(content)
    cache = open_disk_cache(Records(), path=str(folder))
    with caplog.at_level(logging.WARNING):
        records = cache.read(EVERY)
    assert records.damaged > 5
    assert records.misses == records.damaged + 1
    assert caplog.text.count("damaged entry") == 1
    assert summary(records) == summary(Records().read(EVERY))
    assert cache.read(EVERY).hits == 11


@pytest.mark.parametrize("ending", [".data", ".table"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_file_cut_short_or_gone_gives_misses_and_never_a_signal(folder, ending, share):
    for is_open in (True, False):
        shutil.rmtree(folder, ignore_errors=True)
        cache = filled(folder)
        path = file_of(folder, ending)
        if not is_open:
            closed(cache)
        os.truncate(path, int(share * 8000))
        if not is_open:
            cache = open_disk_cache(Records(), path=str(folder))
        assert same_as_source(cache)
        assert same_as_source(cache)


def test_two_files_that_do_not_fit_together_give_misses(folder, tmp_path):
    closed(filled(folder))
    data = file_of(folder, ".data")
    content = data.read_bytes()
    data.write_bytes(content[64:] + content[:64])
    cache = open_disk_cache(Records(), path=str(folder))
    assert same_as_source(cache)
    assert cache.read(EVERY).hits == 11
    file = cache.store._file
    for index in (0, 1):
        file.set_place(index, file.place(index + 1))
    assert same_as_source(cache), "whole entries, of other records"


def test_a_full_disk_ends_admission_with_one_warning(folder, monkeypatch, caplog):
    storage = Records()
    cache = open_disk_cache(storage, path=str(folder))
    cache.read(EVERY[:3])

    def no_space(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("pwritev", "pwrite", "ftruncate"):
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            caplog.clear()
            cache.store.wants_more = True
            patch.setattr(disk_store.os, name, no_space)
            for _ in range(3):
                assert same_as_source(cache)
            if name != "ftruncate":
                assert caplog.text.count("nothing more is admitted (No space left") == 1
                assert cache.read(EVERY).hits == 3


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")
def test_a_write_cut_short_by_a_full_disk_leaves_no_entry(folder):
    cache = open_disk_cache(Records(), path=str(folder))
    full = os.open("/dev/full", os.O_RDWR)
    data = cache.store._file.data
    saved = os.dup(data)
    os.dup2(full, data)
    try:
        assert same_as_source(cache)
    finally:
        os.dup2(saved, data)
        os.close(saved)
        os.close(full)
    assert cache.read(EVERY).hits == 0


def test_a_folder_that_cannot_be_used_is_said_in_a_line(tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    for path in (file, file / "below", Path("/proc/nowhere")):
        with pytest.raises(ValueError, match=r"^dataset\.cache\.path: .* cannot be") as caught:
            open_disk_cache(Records(), path=str(path))
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_said_in_a_line(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match=r"^dataset\.cache\.path: .* cannot be written"):
        open_disk_cache(Records(), path=str(tmp_path / "caches"))


def test_foreign_files_are_left_alone(folder):
    closed(filled(folder))
    table = file_of(folder, ".table")
    (folder / "notes.txt").write_text("mine")
    table.write_bytes(b"somebody's own " * 1000)
    with pytest.raises(ValueError, match="is no cache; move it away"):
        open_disk_cache(Records(), path=str(folder))
    assert table.read_bytes() == b"somebody's own " * 1000
    assert (folder / "notes.txt").read_text() == "mine"
