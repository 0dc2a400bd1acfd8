"""Records on disk: from run to run, by several at once, never a damaged one, within the limit."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from penstock.datasets.caches import disk
from penstock.datasets.caches.disk import open_disk_cache
from penstock.datasets.storages.csv import CsvStorage
from penstock.datasets.storages.image_folder import ImageFolder
from penstock.transforms.decode.image import ImageDecoder
from tests.cached_records import (
    BAD,
    EXPECTED,
    Numbered,
    Records,
    counted_read,
)
from tests.contracts.storage import check_storage, summary
from tests.memory_storage import MemoryStorage
from tests.photographs import photograph

EVERY = np.arange(12)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "caches"


def same_as_source(cache) -> bool:
    return summary(cache.read(EVERY)) == summary(Records().read(EVERY))


def filled(folder: Path, **arguments):
    cache = open_disk_cache(Records(), path=str(folder), **arguments)
    cache.read(EVERY)
    return cache


def file_of_an_earlier_run(folder: Path) -> Path:
    filled(folder).store.close()
    (path,) = folder.glob("*.records")
    return path


def test_it_keeps_the_contract_of_its_storage(folder):
    check_storage(lambda: open_disk_cache(Records(), path=str(folder)), EXPECTED)


def test_a_later_run_hits_what_an_earlier_one_read(folder):
    file_of_an_earlier_run(folder)
    storage = Records()
    cache = open_disk_cache(storage, path=str(folder))
    records = counted_read(cache, EVERY)
    assert (records.hits, records.misses, records.damaged) == (11, 1, 0)
    assert storage.reads == [[BAD]]
    assert summary(records) == summary(Records().read(EVERY))
    records[0].fields["boxes"][:] = 9
    assert same_as_source(cache)


def test_images_of_another_folder_have_their_own_cache(folder, tmp_path):
    (tmp_path / "table.csv").write_text("image,label\na.jpg,0\n")
    found = []
    for place in ("v1", "v2"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.jpg").write_bytes(place.encode() * 4)
        storage = CsvStorage(str(tmp_path / "table.csv"), root=str(tmp_path / place))
        cache = open_disk_cache(storage, path=str(folder))
        found.append(cache.read(np.array([0]))[0].fields["image"])
        cache.store.close()
    (tmp_path / "v2/a.jpg").write_bytes(b"v3v3v3v3")  # of equal size
    for again in (storage, ImageFolder(str(tmp_path / "v2"))):
        cache = open_disk_cache(again, path=str(folder))
        found.append(cache.read(np.array([0]))[0].fields["image"])
        os.utime(tmp_path / "v2/a.jpg", ns=(0, len(found)))
        assert open_disk_cache(again, path=str(folder)).store.path != cache.store.path
    assert found == [b"v1v1v1v1", b"v2v2v2v2", b"v3v3v3v3", b"v3v3v3v3"]


def test_each_way_of_decoding_has_its_own_cache(folder):
    image = {"image": photograph(40, 50), "label": 1}
    storage = MemoryStorage([image])
    caches = [filled(folder)]
    for decode in (ImageDecoder(), ImageDecoder(mode="L"), ImageDecoder(orientation="ignore")):
        caches.append(open_disk_cache(storage, path=str(folder), decode=decode, what="decoded"))
        caches.append(open_disk_cache(storage, path=str(folder), decode=decode))
    assert len({cache.store.path for cache in caches}) == 5
    counted_read(caches[3], np.array([0]))
    grey = counted_read(caches[3], np.array([0]))
    assert grey.hits == 1 and grey[0].fields["image"].shape == (40, 50, 1)
    assert np.array_equal(grey[0].fields["image"], ImageDecoder(mode="L").decode(image["image"]))


def test_every_flipped_byte_is_found(folder):
    path = file_of_an_earlier_run(folder)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    noticed = 0
    for at in sorted({*rng.integers(0, len(whole), 25).tolist(), *range(0, 120, 7)}):
        damaged = bytearray(whole)
        damaged[at] ^= int(rng.integers(1, 256))
        path.unlink(missing_ok=True)  # what others have open stays as it is
        path.write_bytes(damaged)
        cache = open_disk_cache(Records(), path=str(folder))
        noticed += counted_read(cache, EVERY).damaged
        assert same_as_source(cache) and same_as_source(cache), at
        cache.store.close()
    assert noticed > 10


def test_damaged_entries_are_replaced_counted_and_reported_once(folder, caplog):
    with open(file_of_an_earlier_run(folder), "r+b") as file:
        places = np.frombuffer(file.read(8 * 12), np.int64).copy()
        for record in range(7):
            if places[record]:
                file.seek(places[record] + 20)
                file.write(b"zeros")
        places[7:9] = places[8], 0
        file.seek(0)
        file.write(places.tobytes())
    cache = open_disk_cache(Records(), path=str(folder))
    with caplog.at_level(logging.WARNING):
        records = counted_read(cache, EVERY)
    assert records.damaged == 7, "six, and one that is another record's"
    assert records.misses == records.damaged + 2
    assert caplog.text.count("damaged entry") == 1
    assert summary(records) == summary(Records().read(EVERY))
    assert counted_read(cache, EVERY).hits == 11


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_truncated_file_causes_misses_and_never_a_signal(folder, share):
    cache = filled(folder)
    os.truncate(cache.store.path, int(share * os.path.getsize(cache.store.path)))
    assert same_as_source(cache) and same_as_source(cache)
    cache.store.close()
    assert same_as_source(cache)


def test_a_full_disk_ends_admission_with_one_warning(folder):
    code = (
        "import resource, signal, sys, logging, numpy as np; logging.basicConfig();"
        "from penstock.datasets.caches.disk import open_disk_cache;"
        "from tests.cached_records import Records, counted_read;"
        "from tests.contracts.storage import summary;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "cache = open_disk_cache(Records(), path=sys.argv[1]); every = np.arange(12);"
        "cache.read(every[:2]);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000));"
        "same = [summary(cache.read(every)) == summary(Records().read(every)) for _ in range(5)];"
        "print(same, counted_read(cache, every).hits)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        cwd=Path(__file__).resolve().parents[3], capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.startswith("[True, True, True, True, True] "), done.stderr
    assert int(done.stdout.split()[-1]) < 11
    assert done.stderr.count("nothing more is stored") == 1, done.stderr
    assert done.stderr.count("WARNING") == 1, done.stderr


@pytest.mark.parametrize("given", [True, False])
def test_a_cache_folder_that_cannot_be_written_turns_it_off(given, monkeypatch, caplog, folder):
    def refuse(self: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(disk.DiskStore, "open", refuse)
    storage = Records()
    assert open_disk_cache(storage, path=str(folder) if given else None) is storage
    assert "dataset/cache=disk is off" in caplog.text


def test_it_keeps_its_limit(folder):
    storage = Numbered(0)
    cache = open_disk_cache(storage, path=str(folder), max_bytes="1MB")
    for _ in range(2):
        records = counted_read(cache, np.arange(20))
        assert summary(records) == summary(storage.read(np.arange(20)))
    assert 10 < records.hits < 20
    assert sum(path.stat().st_size for path in folder.glob("*")) <= 1_000_000


def test_a_cache_that_was_deleted_by_hand_is_made_again(folder):
    cache = filled(folder)
    shutil.rmtree(folder)
    assert same_as_source(cache)
    assert counted_read(filled(folder), EVERY).hits == 11


def test_it_needs_no_lock(folder, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(fcntl, "lockf", refuse)
    file_of_an_earlier_run(folder)
    assert counted_read(filled(folder), EVERY).hits == 11


def test_it_leaves_a_tenth_of_the_disk_free(folder, monkeypatch, caplog):
    free = [500]
    usage = lambda path: SimpleNamespace(total=1000, free=100 + free[0])  # noqa: E731
    monkeypatch.setattr(disk.shutil, "disk_usage", usage)
    cache = open_disk_cache(Records(), path=str(folder))
    assert same_as_source(cache) and same_as_source(cache)
    assert counted_read(cache, EVERY).hits == 0, "the records are larger than the room"
    assert caplog.text.count("of the disk is free") == 1
    free[0] = 10**9
    assert counted_read(filled(folder), EVERY).hits == 11


def test_workers_read_on_when_the_folder_is_lost(folder):
    copy = pickle.dumps(filled(folder))
    shutil.rmtree(folder)
    folder.write_text("in the way")
    assert same_as_source(pickle.loads(copy))
