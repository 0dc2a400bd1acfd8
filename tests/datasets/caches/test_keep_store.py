"""Entries are never mixed or lost, whatever is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal

import numpy as np
import pytest

from penstock.core.record_codec import Entry
from penstock.core.shared_memory import SharedArea
from penstock.datasets.caches.ram import KeepStore

COUNT = 30
FORK = multiprocessing.get_context("fork")


def content(index: int, size: int) -> bytes:
    return np.random.default_rng([index, size]).bytes(size)


def put(store, index: int, size: int) -> bool:
    data = content(index, size)
    return store.put(index, Entry([data[: size // 3], data[size // 3 :]], size))


@pytest.mark.parametrize("where", ["writing", "changing"])
def test_a_writer_that_is_killed_leaves_no_entry_and_no_lock(where, monkeypatch):
    store = KeepStore(COUNT, 1 << 20)
    assert put(store, 1, 9000)

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def write_half(area, parts, at) -> None:
        os.pwrite(area.descriptor, b"".join(parts)[:4000], at)
        die()

    def victim() -> None:
        if where == "writing":
            monkeypatch.setattr(SharedArea, "write", write_half)
        else:
            store._words = _Deadly(store._words)
        put(store, 2, 9000)

    for _ in range(3):
        process = FORK.Process(target=victim)
        process.start()
        process.join(120)
        assert process.exitcode == -signal.SIGKILL
    assert store.get(2) is None
    assert put(store, 2, 9000)
    assert store.get(2).tobytes() == content(2, 9000)
    assert store.get(1).tobytes() == content(1, 9000)


class _Deadly:
    """Memory that kills whoever changes it."""

    def __init__(self, words) -> None:
        self._words = words

    def __getitem__(self, at: int) -> int:
        return self._words[at]

    def __setitem__(self, at: int, value: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def _work(store, seed: int) -> None:
    rng = np.random.default_rng(seed)
    while True:
        index = int(rng.integers(COUNT))
        found = store.get(index)
        if found is None:
            put(store, index, 1000 * (index + 1))
        elif found.tobytes() != content(index, 1000 * (index + 1)):
            os._exit(3)


def test_processes_that_are_killed_at_any_moment_harm_nobody():
    store = KeepStore(COUNT, 1 << 22)
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
            found = store.get(index)
            assert found is None or found.tobytes() == content(index, 1000 * (index + 1))
    assert witness.exitcode is None, "it saw a damaged entry"
    witness.kill()
    witness.join()
