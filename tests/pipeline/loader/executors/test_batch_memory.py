"""Memory of the batches of threads: lent again when nobody views it, and never before."""

from __future__ import annotations

import gc
import random
import threading

import numpy as np
import pytest
import torch

from penstock.pipeline.loader import memory as memory_module
from penstock.pipeline.loader.compute import BatchComputer
from penstock.pipeline.loader.memory import _LEAST_BYTES, BatchMemory
from tests.pipeline.loader.fakes import FakeDataset, digest, digests, make_loader, the_pool
from tests.pipeline.loader.staged import RowsCollated, StagedFake
from tests.pipeline.loader.test_compute import task

N = 400
SIZE = 16
BYTES = _LEAST_BYTES + 7


def expected(epochs=1, **changes):
    return digests(make_loader(FakeDataset(N, size=SIZE, **changes)), epochs)


@pytest.fixture
def threads(monkeypatch):
    """Makes loaders of two threads whose batches lie in memory as if they were large."""
    monkeypatch.setattr(memory_module, "_LEAST_BYTES", 1)

    def made(dataset=None, **changes):
        settings = {"engine": "threads", "num_workers": 2, "collate": RowsCollated(), **changes}
        return make_loader(dataset or StagedFake(N, size=SIZE), **settings)

    return made


class _Kind(np.ndarray):
    pass


VIEWS = {
    "array": lambda array: array[5:9],
    "tensor": torch.from_numpy,
    "row of a tensor": lambda array: torch.from_numpy(array).view(1, -1)[0, 5:9],
    "array of a tensor": lambda array: torch.from_numpy(array)[5:].numpy()[1:],
    "other type": lambda array: array[:800].view(np.float64).reshape(10, 10).T,
    "subclass": lambda array: array.view(_Kind)[5:],
    "strides": lambda array: np.lib.stride_tricks.as_strided(array, (3,), (2,)),
    "from a buffer": lambda array: torch.frombuffer(array, dtype=torch.int64, count=9),
    "memoryview": lambda array: memoryview(array)[5:9],
    "storage": lambda array: torch.from_numpy(array).untyped_storage(),
    "dlpack": lambda array: torch.from_dlpack(array)[3:],
    "as rows": lambda array: np.frombuffer(array, np.uint8, 600).reshape(3, 200)[1],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_a_block_is_lent_again_when_its_last_view_is_gone(view):
    memory = BatchMemory()
    array = memory.allocate(BYTES)
    address = array.ctypes.data
    kept = view(array)
    del array
    gc.collect()
    other = memory.allocate(BYTES)
    assert abs(other.ctypes.data - address) >= BYTES
    del kept
    gc.collect()
    assert memory.allocate(BYTES).ctypes.data == address


def test_what_has_no_room_is_fresh_and_what_is_small_is_ordinary():
    memory = BatchMemory()
    for size_bytes in (0, 1, _LEAST_BYTES - 1):
        assert memory.allocate(size_bytes).nbytes == max(size_bytes, 1)
    assert not memory._lent
    first = memory.allocate(BYTES).ctypes.data
    assert memory.allocate(BYTES - 5).ctypes.data == first, "the last batch is short"
    assert memory.allocate(3 * BYTES).nbytes == 3 * BYTES
    assert len(memory._free) == 0, "too small: given back"
    assert memory.allocate(BYTES).nbytes == BYTES
    assert len(memory._free) == 0, "far too large: given back"


def test_no_more_than_some_blocks_are_kept_for_later():
    memory = BatchMemory()
    held = [memory.allocate(BYTES) for _ in range(memory_module._MOST_FREE + 3)]
    del held
    memory.allocate(BYTES)
    assert len(memory._lent) + len(memory._free) <= memory_module._MOST_FREE


def test_a_system_without_memory_is_told():
    with pytest.raises(MemoryError, match=r"no memory for the 4,611,686,018,427 MB .*batch_size"):
        BatchMemory().allocate(1 << 62)


def test_a_release_leaves_what_is_viewed_to_its_viewers():
    memory = BatchMemory()
    kept, free = memory.allocate(BYTES), memory.allocate(BYTES)
    kept[:] = 7
    del free
    memory.allocate(BYTES)
    memory.release()
    assert not memory._free and not memory._lent
    others = [memory.allocate(BYTES) for _ in range(3)]
    for other in others:
        other[:] = 8
    assert (kept == 7).all()


def test_threads_never_share_a_block(monkeypatch):
    monkeypatch.setattr(memory_module, "_LEAST_BYTES", 1)
    memory, wrong = BatchMemory(), []

    def lend(number):
        draw, held = random.Random(number), []
        for count in range(400):
            array = memory.allocate(draw.choice((4096, 6000)))
            array[:] = mark = (number * 61 + count) % 251
            held.append((array, mark))
            while len(held) > draw.randrange(4):
                array, mark = held.pop(draw.randrange(len(held)))
                if (array != mark).any():
                    wrong.append((number, count))
                del array

    pool = [threading.Thread(target=lend, args=(number,)) for number in range(4)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    assert not wrong


def test_kept_batches_are_never_overwritten(threads):
    with threads() as loader:
        kept = list(loader) + list(loader)
        assert [digest(batch) for batch in kept] == expected(2)
    assert [digest(batch) for batch in kept] == expected(2), "also after the threads are gone"


def test_a_row_of_each_batch_may_be_kept_for_ever(threads):
    with threads() as loader:
        rows = [batch["image"][3].numpy()[1:] for batch in loader]
        digests(loader)
    others = [batch["image"][3].numpy()[1:] for batch in make_loader(FakeDataset(N, size=SIZE))]
    assert all((row == other).all() for row, other in zip(rows, others, strict=True))


def test_batches_are_used_after_the_next_was_fetched(threads):
    got = []
    with threads() as loader:
        batches = iter(loader)
        current = next(batches)
        for following in batches:
            got.append(digest(current))
            current = following
    assert [*got, digest(current)] == expected()


@pytest.mark.parametrize("on_error", ["replace", "skip"])
def test_bad_samples_change_nothing_of_their_neighbours(threads, on_error):
    changes = {"on_error": on_error, "max_error_rate": 1}
    alike = make_loader(FakeDataset(N, size=SIZE, bad=(3, 40, 47)), **changes)
    with threads(StagedFake(N, size=SIZE, bad=(3, 40, 47)), **changes) as loader:
        assert digests(loader, 2) == digests(alike, 2)


def test_memory_stays_that_of_the_batches_at_hand(threads, monkeypatch):
    fresh = []
    make = BatchMemory._fresh
    monkeypatch.setattr(
        BatchMemory, "_fresh", lambda memory, size: fresh.append(size) or make(memory, size)
    )
    with threads(across_epochs=False) as loader:
        got = []
        for _ in range(3):
            for batch in loader:
                got.append(digest(batch))
                memory = the_pool(loader)._memory
                # Those computed ahead, those being computed, the loop's own, and spare ones.
                assert len(memory._lent) + len(memory._free) <= 4 + 2 + 2 + 8
            del batch
            assert not memory._free and not memory._lent, "between epochs there is nothing"
    assert got == expected(3)
    assert 0 < len(fresh) < 3 * N / 8, "used again"


def test_memory_is_asked_for_behind_the_first_reading():
    asked = []
    dataset = StagedFake(N, size=SIZE, on_read=lambda records: asked.append("read"))
    compute = BatchComputer(dataset, sampler=None, collate=RowsCollated(), seed=0, on_error="raise")

    def allocate(size_bytes):
        asked.append(size_bytes)
        return np.empty(size_bytes, np.uint8)

    compute(task(*range(8)), allocate=allocate)
    assert asked == ["read", 8 * SIZE * SIZE * 3]
