"""Records on disk: from run to run, by several at once, never a damaged one, within the limit."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import pickle
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from datasets.caches.disk import open_disk_cache
from datasets.caching import disk_store
from datasets.caching.disk_folder import DiskFolder
from tests.cached_records import BAD, EXPECTED, Numbered, Records, hits_of_another
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


def test_the_limit_holds_for_the_folder_and_old_caches_make_room(folder):
    folder.mkdir()
    (folder / "notes.txt").write_bytes(bytes(100))
    kept = []
    for number in range(6):
        storage = Numbered(number)
        cache = open_disk_cache(storage, path=str(folder), max_bytes="3MB")
        assert summary(cache.read(np.arange(20))) == summary(storage.read(np.arange(20)))
        assert cache.read(np.arange(20)).hits == 20, "an older one made room"
        sizes = [path.stat().st_size for path in folder.glob("*") if path.suffix != ".txt"]
        assert sum(sizes) <= 3_000_000
        kept.append(cache.store._arguments["name"])
        closed(cache)
    assert {path.stem for path in folder.glob("*.table")} == set(kept[-2:])
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
    assert ours.poll(60)
    assert ours.recv() < 20
    process.join()
    assert used.read(np.arange(20)).hits == 20
    assert sum(path.stat().st_size for path in folder.glob("*.data")) <= 2_000_000


def test_a_limit_too_small_for_anything(folder):
    with pytest.raises(ValueError, match="allow more"):
        open_disk_cache(Numbered(0), path=str(folder), max_bytes=100)
    cache = open_disk_cache(Numbered(0), path=str(folder), max_bytes=20_000)
    for _ in range(2):
        assert cache.read(np.arange(20)).hits == 0


def test_a_cache_that_was_deleted_by_hand_is_made_again(folder):
    cache = filled(folder)
    shutil.rmtree(folder)
    assert same_as_source(cache)
    other = filled(folder)
    assert other.read(EVERY).hits == 11
    assert file_of(folder, ".data").stat().st_size > 50_000


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
        with cache.store._file.lock:  # so that there is always something to be written
            cache.store._file.set_place(int(rng.integers(12)), 0)


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
    assert {path.suffix for path in folder.iterdir()} <= {".table", ".data", ".lock"}


def test_a_writer_killed_in_the_middle_of_an_entry_leaves_a_hole(folder, monkeypatch):
    cache = open_disk_cache(Records(), path=str(folder))

    def victim() -> None:
        def half(descriptor, parts, at) -> int:
            os.pwrite(descriptor, b"".join(parts)[:100], at)
            os.kill(os.getpid(), signal.SIGKILL)
            return 0

        monkeypatch.setattr(disk_store.os, "pwritev", half)
        cache.read(EVERY)

    process = FORK.Process(target=victim)
    process.start()
    process.join(20)
    assert process.exitcode == -signal.SIGKILL
    records = cache.read(EVERY)
    assert (records.hits, records.damaged) == (0, 0)
    assert cache.read(EVERY).hits == 11
    assert same_as_source(cache)


def test_a_process_has_one_object_for_a_cache_and_gives_it_up(folder):
    cache = filled(folder)
    copy = pickle.loads(pickle.dumps(cache))
    assert copy.read(EVERY).hits == 11
    assert copy.store._file is cache.store._file
    before = len(os.listdir("/proc/self/fd"))
    closed(copy)
    closed(cache)
    assert len(os.listdir("/proc/self/fd")) == before - 3


def test_a_file_system_without_locks_is_said(folder, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("datasets.caching.process_lock.fcntl.lockf", refuse)
    with pytest.raises(ValueError, match="cannot be locked"):
        DiskFolder(folder, max_bytes=1)
