"""Entries of a file that processes share are never mixed or lost, whatever is killed."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys

import numpy as np
import pytest

from penstock.core.record_codec import Entry
from penstock.datasets.caches.disk import DiskStore
from penstock.datasets.caches.ram import MemoryStore

COUNT = 30
FORK = multiprocessing.get_context("fork")


@pytest.fixture(params=["disk", "ram"])
def store(request, tmp_path):
    if request.param == "ram":
        return MemoryStore(COUNT, 1 << 22)
    return DiskStore(tmp_path / "x", count=COUNT, max_bytes=1 << 22)


def content(index: int, size: int) -> bytes:
    return np.random.default_rng([index, size]).bytes(size)


def put(store, index: int, size: int) -> None:
    data = content(index, size)
    store.put_all([(index, Entry([data[: size // 3], data[size // 3 :]], size))])


def get(store, index: int) -> bytes | None:
    [found] = store.get_all([index])
    return None if found is None else bytes(found)


@pytest.mark.parametrize("where", ["writev", "pwrite"])
def test_a_writer_that_is_killed_leaves_no_entry(where, store, monkeypatch):
    put(store, 1, 9000)

    def die(descriptor, parts, *_) -> None:
        if where == "writev":
            os.write(descriptor, b"".join(parts)[:4001])
        os.kill(os.getpid(), signal.SIGKILL)

    def victim() -> None:
        monkeypatch.setattr(os, where, die)
        put(store, 2, 9000)

    for _ in range(3):
        process = FORK.Process(target=victim)
        process.start()
        process.join(120)
        assert process.exitcode == -signal.SIGKILL
    assert get(store, 2) is None
    put(store, 2, 9000)
    assert [get(store, n) for n in (1, 2)] == [content(1, 9000), content(2, 9000)]
    [entry] = store.get_all([2])
    assert np.frombuffer(entry, np.uint8).ctypes.data % 16 == 0, "arrays in it are aligned"


def _work(store, seed: int) -> None:
    rng = np.random.default_rng(seed)
    while True:
        index = int(rng.integers(COUNT))
        found = get(store, index)
        if found is None:
            put(store, index, 1000 * (index + 1))
        elif found != content(index, 1000 * (index + 1)):
            os._exit(3)


def test_killed_processes_damage_no_entry(store):
    witness = FORK.Process(target=_work, args=(store, 0), daemon=True)
    witness.start()
    rng = np.random.default_rng(1)
    for round_ in range(25):
        process = FORK.Process(target=_work, args=(store, round_ + 1), daemon=True)
        process.start()
        process.join(float(rng.uniform(0.001, 0.03)))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "it saw a damaged entry"
        for index in range(COUNT):
            assert get(store, index) in (None, content(index, 1000 * (index + 1)))
    assert witness.exitcode is None, "it saw a damaged entry"
    witness.kill()
    witness.join()


def test_an_entry_that_does_not_fit_leaves_room_for_smaller_ones(store):
    for index, size in enumerate((3_000_000, 2_000_000, 1_000_000, 1_000_000)):
        put(store, index, size)
    assert [get(store, n) is None for n in range(4)] == [False, True, False, True]
    assert not store.wants_more


def test_memory_pickles_as_a_place_and_ends_with_its_maker(tmp_path):
    store = MemoryStore(COUNT, 1 << 20)
    put(store, 1, 100)
    pickled = pickle.dumps(store)
    assert len(pickled) < 500
    code = (
        "import pickle, sys; store = pickle.loads(sys.stdin.buffer.read());"
        "sys.stdout.buffer.write(bytes(store.get_all([1])[0]))"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickled, capture_output=True, env=environment
    )
    assert done.stdout == content(1, 100), done.stderr
    assert not list(tmp_path.iterdir())
    del store
    with pytest.raises(RuntimeError, match="are for one machine"):
        pickle.loads(pickled)
