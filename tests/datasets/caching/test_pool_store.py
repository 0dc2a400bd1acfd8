"""Blocks are never lost or given twice, and entries never mixed, whatever is killed."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datasets.caching import keep_store, pool_store
from datasets.caching.entries import Entry
from datasets.caching.keep_store import KeepStore
from datasets.caching.policies import Adaptive, LeastRecentlyUsed
from datasets.caching.pool_store import PoolStore

COUNT = 30
FORK = multiprocessing.get_context("fork")


def content(index: int, size: int) -> bytes:
    return np.random.default_rng([index, size]).bytes(size)


def put(store, index: int, size: int) -> bool:
    data = content(index, size)
    return store.put(index, Entry([data[: size // 3], data[size // 3 :]], size))


def pool(policy=None, blocks: int = 20) -> PoolStore:
    size_bytes = 8192 + 16 * COUNT + blocks * (4096 + 12)
    return PoolStore(COUNT, size_bytes, block_bytes=4096, policy=policy or LeastRecentlyUsed())


def blocks_add_up(store: PoolStore) -> bool:
    """Every block is free or of one entry, and nobody writes."""
    heads = (store._places[store._places != 0] & 0xFFFFFFFF) - 1
    used = store._reached(heads)
    every = np.concatenate([used, store._free[: store.free_blocks]])
    return sorted(every.tolist()) == list(range(store.num_blocks)) and not store._writers.any()


@settings(max_examples=60)
@given(
    steps=st.lists(
        st.tuples(st.booleans(), st.integers(0, COUNT - 1), st.integers(0, 30_000)), max_size=60
    )
)
def test_a_pool_is_a_dictionary_that_forgets_what_was_used_longest_ago(steps):
    store = pool()
    sizes: dict[int, int] = {}
    used: list[int] = []
    for is_put, index, size in steps:
        if is_put:
            if put(store, index, size):
                assert index not in sizes or store.get(index) is not None
                sizes[index] = size
                if index not in used:
                    used.append(index)
        else:
            found = store.get(index)
            if found is not None:
                assert found.tobytes() == content(index, sizes[index])
            # Stamps are of lookups: what was looked up last goes last.
            used = [i for i in used if i != index] + [index]
        residents = set(store.residents.tolist())
        sizes = {i: s for i, s in sizes.items() if i in residents}
        assert residents == set(sizes)
        assert sum(-(-(16 + s) // 4096) for s in sizes.values()) * 4096 == store.used_bytes
        assert blocks_add_up(store)


def test_the_least_recently_used_goes_first():
    store = pool(blocks=8)
    for index in range(4):
        store.get(index)
        assert put(store, index, 8000)
    store.get(0)
    store.get(9)
    assert put(store, 9, 8000)
    assert set(store.residents.tolist()) == {0, 2, 3, 9}


@pytest.mark.parametrize("make", [pool, lambda: KeepStore(COUNT, 1 << 20)], ids=["pool", "keep"])
@pytest.mark.parametrize("where", ["writing", "changing"])
def test_a_writer_that_is_killed_leaves_no_entry_no_lock_and_no_lost_block(
    make, where, monkeypatch
):
    store = make()
    assert put(store, 1, 9000)

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def write_half(descriptor, parts, size_bytes, at) -> None:
        os.pwrite(descriptor, b"".join(parts)[: size_bytes // 2], at)
        die()

    def victim() -> None:
        if where == "writing":
            monkeypatch.setattr(keep_store, "write_parts", write_half)
            monkeypatch.setattr(pool_store, "write_parts", write_half)
        elif isinstance(store, PoolStore):
            store._writers = store._writers.view(_DeadlyArray)
        else:
            store._words = _Deadly(store._words)
        put(store, 2, 9000)

    for _ in range(3):
        process = FORK.Process(target=victim)
        process.start()
        process.join(20)
        assert process.exitcode == -signal.SIGKILL
    assert store.get(2) is None
    assert put(store, 2, 9000)
    assert store.get(2).tobytes() == content(2, 9000)
    assert store.get(1).tobytes() == content(1, 9000)
    if isinstance(store, PoolStore):
        for index in range(3, 20):  # more than fits, so that room is looked for
            assert put(store, index, 9000)
        assert blocks_add_up(store)


class _DeadlyArray(np.ndarray):
    """The same for an array."""

    def __setitem__(self, at, value) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


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


@pytest.mark.parametrize("kind", ["lru", "adaptive", "keep"])
def test_processes_that_are_killed_at_any_moment_harm_nobody(kind):
    policy = {"lru": LeastRecentlyUsed(), "adaptive": Adaptive()}.get(kind)
    store = KeepStore(COUNT, 1 << 22) if policy is None else pool(policy, blocks=60)
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
    if isinstance(store, PoolStore):
        with store._changing():
            store.reclaim()
        assert blocks_add_up(store)


def test_memory_goes_back_to_the_system_with_what_nobody_uses():
    store = pool(Adaptive(), blocks=160)
    descriptor = store._area.descriptor
    for index in range(COUNT):  # returns make it grow
        for _ in range(60):
            if store.get(index) is None:
                put(store, index, 16_000)
    for _ in range(400):
        for index in range(COUNT):
            if store.get(index) is None:
                put(store, index, 16_000)
    high = os.fstat(descriptor).st_blocks * 512
    assert store.residents.size == COUNT
    for _ in range(3 * 300):
        store.get(0)
    assert store.residents.tolist() == [0]
    assert os.fstat(descriptor).st_blocks * 512 < high / 4
    assert blocks_add_up(store)


def test_one_process_has_one_object_for_an_area():
    store = pool()
    copies = [pickle.loads(pickle.dumps(store)) for _ in range(3)]
    assert all(copy._area is store._area for copy in copies)
    assert put(copies[0], 4, 5000)
    assert store.get(4).tobytes() == content(4, 5000)
