"""Memory of batches: used again when no array views it, and never before."""

from __future__ import annotations

import gc
import os
import random
import threading

import numpy as np
import pytest
import torch

from penstock.pipeline.loader import arena
from penstock.pipeline.loader.arena import Arena

BYTES = arena._LEAST_BYTES + 7


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
def test_a_slot_is_used_again_when_its_last_view_is_gone(view):
    memory = Arena(2)
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


def test_batches_without_a_slot_are_ordinary_and_no_memory_is_an_error():
    memory = Arena(1)
    assert memory.allocate(1).nbytes == 1 and not memory._leased
    first, second = memory.allocate(BYTES), memory.allocate(BYTES)
    assert len(memory._leased) == 1 and first.nbytes == second.nbytes == BYTES
    with pytest.raises(MemoryError, match="batch_size"):
        Arena(1).allocate(1 << 62)


def test_threads_never_share_a_slot(monkeypatch):
    monkeypatch.setattr(arena, "_LEAST_BYTES", 1)
    memory, wrong = Arena(20), []

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


def test_memory_that_a_fork_views_is_never_written_again():
    memory = Arena(2, is_shared=True)
    kept = memory.lease(memory.take(), BYTES)
    kept[:] = 7
    if (child := os.fork()) == 0:
        os._exit(not (kept == 7).all())
    del kept
    others = [memory.lease(memory.take(), BYTES) for _ in range(2)]
    assert os.waitpid(child, 0)[1] == 0 and len(others) == 2 and memory.take() is None
