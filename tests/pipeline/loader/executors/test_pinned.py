"""Batches in page-locked memory: each is written once, and never overwritten."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from penstock.pipeline.loader import arena
from penstock.pipeline.loader.contract import mapped
from penstock.pipeline.loader.device.accelerator import Accelerator, PageLock
from penstock.pipeline.loader.device.queue import DeviceQueue
from tests.pipeline.loader.fakes import FakeDataset, digest, digests, make_loader, pids_of
from tests.pipeline.loader.staged import RowsCollated, StagedFake

N = 400
SIZE = 16
THREADS = {"engine": "threads", "num_workers": 2, "collate": RowsCollated()}
PROCESS = {**THREADS, "engine": "processes"}
WAYS = pytest.mark.parametrize("settings", [{**THREADS, "num_workers": 0}, THREADS, PROCESS],
                               ids=["here", "threads", "process"])  # fmt: skip


class FakeAccelerator(Accelerator):
    """Page locks without an accelerator.

    Attributes:
        locked: Sizes of what is locked, by address.
        made: Number of locks that were ever made.
        fails: Whether page-locking fails.
    """

    def __init__(self, *, fails: bool = False) -> None:
        self.device = torch.device("cpu")
        self.locked: dict[int, int] = {}
        self.made = 0
        self.fails = fails

    def register(self, address: int, size_bytes: int) -> bool:
        if not self.fails:
            assert address not in self.locked and not address % 4096
            self.locked[address] = size_bytes
            self.made += 1
        return not self.fails

    def unregister(self, address: int) -> None:
        del self.locked[address]

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether all bytes of a tensor lie in one block of locked memory."""
        start, stop = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        return any(a <= start and stop <= a + size for a, size in self.locked.items())


@pytest.fixture
def memory(monkeypatch):
    monkeypatch.setattr(arena, "_LEAST_BYTES", 1)
    return FakeAccelerator()


def expected(epochs: int = 1, **settings):
    return digests(make_loader(FakeDataset(N, size=SIZE, **settings)), epochs)


def staged(memory, **changes):
    loader = make_loader(StagedFake(N, size=SIZE), **changes)
    loader.page_lock(memory)
    return loader


@WAYS
def test_batches_are_written_into_locked_slots_that_are_used_again(memory, settings):
    with staged(memory, **settings) as loader:
        got = []
        for _ in range(2):
            for batch in loader:
                assert memory.has(batch["image"])
                got.append(digest(batch))
        assert got == expected(2) and 1 <= memory.made <= 2 * 3 + 3
        assert loader.page_lock(memory) is loader.page_lock(memory)
    assert memory.has(batch["image"]), "the consumer still has it"
    del batch, loader
    gc.collect()
    assert not memory.locked


@WAYS
def test_without_a_consumer_on_a_device_nothing_is_locked(memory, settings):
    digests(make_loader(StagedFake(N, size=SIZE), pin_memory=True, **settings))
    digests(staged(memory, pin_memory=False, **settings))
    assert not memory.made


def test_a_slot_that_grows_is_locked_anew(memory):
    slots = arena.Arena(1, is_shared=True)
    slots.memory.page_lock(PageLock(memory))
    for size_bytes in (1 << 20, 1 << 22, 1 << 21):
        view = slots.lease(slots.take(), size_bytes)
        [size] = memory.locked.values()
        assert size >= size_bytes and memory.has(torch.from_numpy(view))
        del view
    assert memory.made == 2
    slots.memory.close()
    gc.collect()
    assert not memory.locked


@WAYS
def test_kept_batches_and_rows_are_never_overwritten(memory, settings):
    with staged(memory, **settings) as loader:
        rows = [batch["image"][3].numpy()[1:] for batch in loader]
        kept = list(loader)
        assert [digest(batch) for batch in kept] == expected(2)[N // 8 :]
    assert [digest(batch) for batch in kept] == expected(2)[N // 8 :], "also without workers"
    others = [batch["image"][3].numpy()[1:] for batch in make_loader(FakeDataset(N, size=SIZE))]
    assert all((row == other).all() for row, other in zip(rows, others, strict=True))


def test_a_process_that_is_killed_changes_nothing_while_one_batch_is_fetched_ahead(memory):
    """As accelerate does: batch n + 1 is fetched before batch n is used."""
    with staged(memory, **PROCESS) as loader:
        got, iterator = [], iter(loader)
        current = next(iterator)
        for number, following in enumerate(iterator):
            got.append(digest(current))
            current = following
            if number == 5:
                os.kill(pids_of(loader)[0], 9)
        assert [*got, digest(current)] == expected()


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [THREADS, PROCESS], ids=["threads", "process"])
def test_on_cuda_batches_arrive_page_locked_and_whole(memory, settings):
    expected = digests(make_loader(FakeDataset(N, size=64)), 2)
    with make_loader(StagedFake(N, size=64), **settings) as loader:
        queue, got = DeviceQueue(loader, "cuda"), []
        for batch in queue:
            torch.cuda._sleep(1_000_000)
            del batch["num_valid"]
            got.append(mapped(batch, lambda v: v.cpu() if isinstance(v, torch.Tensor) else v))
        assert [digest(batch) for batch in got] == expected[: N // 8]
        for batch in loader:
            assert batch["image"].is_pinned()
        del batch


@pytest.mark.gpu
def test_a_bare_loader_opens_no_context_on_the_device():
    code = (
        "import torch\n"
        "from tests.pipeline.loader.fakes import FakeDataset, digests, make_loader\n"
        "for engine in ('inline', 'threads'):\n"
        "    with make_loader(FakeDataset(32), engine=engine, num_workers=2) as it:\n"
        "        assert digests(it) and not torch.cuda.is_initialized(), engine\n"
    )
    root = Path(__file__).resolve().parents[4]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
