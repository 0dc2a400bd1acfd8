"""A folder of disk caches that several processes and data sets use, within its limit."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import pickle
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from penstock.datasets.caches import disk
from penstock.datasets.caches.disk import open_disk_cache
from tests.cached_records import Numbered, Records, hits_of_another
from tests.contracts.storage import summary

FORK = multiprocessing.get_context("fork")
EVERY = np.arange(12)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "caches"


def closed(cache) -> None:
    """As at the end of a run."""
    cache.store.close()


def same_as_source(cache) -> bool:
    return summary(cache.read(EVERY)) == summary(Records().read(EVERY))


def filled(folder: Path, **arguments):
    cache = open_disk_cache(Records(), path=str(folder), **arguments)
    cache.read(EVERY)
    return cache


def test_the_limit_holds_for_the_folder_and_old_caches_make_room(folder, monkeypatch):
    monkeypatch.setattr(disk, "_UNUSED_S", 0)
    folder.mkdir()
    (folder / "notes.txt").write_bytes(bytes(100))
    kept = []
    for number in range(6):
        storage = Numbered(number)
        cache = open_disk_cache(storage, path=str(folder), max_bytes="3.5MB")
        assert summary(cache.read(np.arange(20))) == summary(storage.read(np.arange(20)))
        assert cache.read(np.arange(20)).hits == 20, "an older one made room"
        sizes = [path.stat().st_size for path in folder.glob("*") if path.suffix != ".txt"]
        assert sum(sizes) <= 3_500_000
        kept.append(cache.store.path)
        closed(cache)
    assert set(folder.glob("*.records")) == set(kept[-2:])
    assert (folder / "notes.txt").exists()


def test_what_is_in_use_makes_no_room(folder):
    first = Numbered(0)
    used = open_disk_cache(first, path=str(folder), max_bytes="2MB")
    assert used.read(np.arange(20)).misses == 20

    # Not forked from here: a forked process knows what its parent has open.
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=hits_of_another, args=(str(folder), theirs))
    process.start()
    assert ours.poll(120)
    assert ours.recv() < 20
    process.join()
    assert used.read(np.arange(20)).hits == 20
    assert sum(path.stat().st_size for path in folder.glob("*")) <= 2_000_000


def test_a_cache_that_was_deleted_by_hand_is_made_again(folder):
    cache = filled(folder)
    shutil.rmtree(folder)
    assert same_as_source(cache)
    other = filled(folder)
    assert other.read(EVERY).hits == 11


def _work(folder: Path, seed: int) -> None:
    storage = Records()
    cache = open_disk_cache(storage, path=str(folder))
    expected = summary(storage.read(EVERY))
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(12)
        records = cache.read(order)
        if summary(records) != [expected[i] for i in order.tolist()] or records.damaged:
            os._exit(3)
        # So that there is always something to be written.
        with open(cache.store.path, "r+b") as file:
            file.seek(8 * int(rng.integers(12)))
            file.write(bytes(8))


def test_processes_that_are_killed_at_any_moment_harm_nobody(folder):
    witness = FORK.Process(target=_work, args=(folder, 0), daemon=True)
    witness.start()
    rng = np.random.default_rng(1)
    for round_ in range(25):
        process = FORK.Process(target=_work, args=(folder, round_ + 1), daemon=True)
        process.start()
        process.join(float(rng.uniform(0.001, 0.04)))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "it saw a damaged entry"
    assert witness.exitcode is None, "it saw a damaged entry"
    witness.kill()
    witness.join()
    cache = open_disk_cache(Records(), path=str(folder))
    records = cache.read(EVERY)
    assert records.damaged == 0
    assert same_as_source(cache)
    assert cache.read(EVERY).hits == 11
    closed(cache)
    assert {path.suffix for path in folder.iterdir()} == {".records"}


def test_it_needs_no_lock(folder, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(fcntl, "lockf", refuse)
    closed(filled(folder))
    assert filled(folder).read(EVERY).hits == 11


def test_it_leaves_a_tenth_of_the_disk_free(folder, monkeypatch, caplog):
    free = [500]
    usage = lambda path: SimpleNamespace(total=1000, free=100 + free[0])  # noqa: E731
    monkeypatch.setattr(disk.shutil, "disk_usage", usage)
    cache = open_disk_cache(Records(), path=str(folder))
    for _ in range(2):
        assert same_as_source(cache)
    assert cache.read(EVERY).hits == 0, "the records are larger than the room"
    assert caplog.text.count("of the disk is free") == 1
    free[0] = 10**9
    other = open_disk_cache(Records(), path=str(folder))
    other.read(EVERY)
    assert other.read(EVERY).hits == 11


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_cache_folder_that_cannot_be_written_turns_it_off(number, monkeypatch, caplog, folder):
    def refuse(self: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(disk.DiskStore, "open", refuse)
    storage = Records()
    assert open_disk_cache(storage) is storage
    assert "dataset/cache=disk is off" in caplog.text
    if number == errno.ENOSPC:
        assert open_disk_cache(storage, path=str(folder)) is storage
    else:
        with pytest.raises(ValueError, match=r"^dataset\.cache\.path: "):
            open_disk_cache(storage, path=str(folder))


def test_workers_read_on_when_the_folder_is_lost(folder):
    copy = pickle.dumps(filled(folder))
    shutil.rmtree(folder)
    folder.write_text("in the way")
    assert same_as_source(pickle.loads(copy))
