"""Batches in page-locked memory: nothing copied that need not be, and nothing overwritten."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from penstock.pipeline.loader import memory as memory_module
from penstock.pipeline.loader.arena import Arena
from penstock.pipeline.loader.contract import mapped
from penstock.pipeline.loader.device.accelerator import PageLock
from penstock.pipeline.loader.device.queue import DeviceQueue
from tests.pipeline.loader.fakes import FakeDataset, digest, digests, make_loader, the_pool
from tests.pipeline.loader.staged import FakeAccelerator, RowsCollated, StagedFake

N = 400
SIZE = 16
THREADS = {"engine": "threads", "num_workers": 2, "collate": RowsCollated()}
PROCESS = {**THREADS, "engine": "processes"}


@pytest.fixture
def memory(monkeypatch):
    monkeypatch.setattr(memory_module, "_LEAST_BYTES", 1)
    return FakeAccelerator()


def expected(epochs: int = 1, **settings):
    return digests(make_loader(FakeDataset(N, size=SIZE, **settings)), epochs)


def staged(memory, **changes):
    loader = make_loader(StagedFake(N, size=SIZE), **changes)
    loader.page_lock(memory)
    return loader


def test_threads_write_images_into_locked_blocks_and_use_them_again(memory):
    with staged(memory, **THREADS, across_epochs=False) as loader:
        got = []
        for _ in range(3):
            for batch in loader:
                assert memory.has(batch["image"])
                got.append(digest(batch))
            del batch
    assert got == expected(3)
    # At most those computed ahead, those being computed, the loop's own; free ones go at the end.
    assert memory.made <= 3 * (4 + 2 + 2)
    del loader
    gc.collect()
    assert not memory.locked


def test_processes_write_whole_batches_into_locked_slots(memory):
    with staged(memory, **PROCESS) as loader:
        for batch in loader:
            tensors = [value for value in batch.values() if isinstance(value, torch.Tensor)]
            assert len(tensors) == 6 and all(map(memory.has, tensors))
        # A worker may write to a slot that this process has not mapped yet.
        assert 1 <= memory.made <= len(memory.locked) <= the_pool(loader)._arena._made
        del tensors
    assert memory.has(batch["image"]), "the consumer still has it"
    del batch, loader
    gc.collect()
    assert not memory.locked


@pytest.mark.parametrize("settings", [{**THREADS, "num_workers": 0}, THREADS, PROCESS],
                         ids=["here", "threads", "process"])  # fmt: skip
def test_without_a_consumer_on_a_device_nothing_is_locked(memory, settings):
    digests(make_loader(StagedFake(N, size=SIZE), **settings))
    digests(make_loader(StagedFake(N, size=SIZE), pin_memory=True, **settings))
    digests(staged(memory, pin_memory=False, **settings))
    assert not memory.made


def test_another_queue_over_the_same_loader_locks_nothing_again(memory):
    with staged(memory, **PROCESS, across_epochs=False) as loader:
        lock = loader.page_lock(memory)
        for _ in range(3):
            assert loader.page_lock(memory) is lock
            digests(loader)
        assert 1 <= memory.made <= the_pool(loader)._arena._made


@pytest.mark.parametrize("settings", [THREADS, PROCESS], ids=["threads", "process"])
def test_where_locking_fails_it_is_tried_once(settings, monkeypatch):
    memory = FakeAccelerator(fails=True)
    tries = []
    monkeypatch.setattr(memory, "register", lambda *given: tries.append(given))
    monkeypatch.setattr(memory_module, "_LEAST_BYTES", 1)
    with staged(memory, **settings) as loader:
        assert digests(loader) == expected()
    assert 1 <= len(tries) <= 2, "threads may try at the same time"


def test_a_slot_that_grows_is_locked_anew(memory):
    arena = Arena(1)
    arena.file.page_lock(PageLock(memory))
    for size_bytes in (1 << 20, 1 << 22, 1 << 21):
        view = arena.lease(arena.take(), size_bytes)
        [size] = memory.locked.values()
        assert size >= size_bytes and memory.has(torch.from_numpy(view))
        del view
    assert memory.made == 2
    arena.close()
    gc.collect()
    assert not memory.locked


@pytest.mark.parametrize(
    "settings",
    [{**THREADS, "num_workers": 0}, THREADS, PROCESS],
    ids=["here", "threads", "process"],
)
def test_kept_batches_are_never_overwritten(memory, settings):
    with staged(memory, **settings) as loader:
        kept = list(loader) + list(loader)
        assert [digest(batch) for batch in kept] == expected(2)
    assert [digest(batch) for batch in kept] == expected(2), "also after the workers are gone"


@pytest.mark.parametrize("settings", [THREADS, PROCESS], ids=["threads", "process"])
def test_rows_of_a_batch_are_enough_to_keep_it(memory, settings):
    with staged(memory, **settings) as loader:
        rows = [batch["image"][3].numpy()[1:] for batch in loader]
        digests(loader)
    others = [batch["image"][3].numpy()[1:] for batch in make_loader(FakeDataset(N, size=SIZE))]
    assert all((row == other).all() for row, other in zip(rows, others, strict=True))


@pytest.mark.parametrize("settings", [THREADS, PROCESS], ids=["threads", "process"])
def test_fetching_one_batch_ahead_of_the_loop(memory, settings):
    """As accelerate does: batch n + 1 is fetched before batch n is used."""
    got = []
    with staged(memory, **settings) as loader:
        iterator = iter(loader)
        current = next(iterator)
        for following in iterator:
            got.append(digest(current))
            current = following
        got.append(digest(current))
    assert got == expected()


@pytest.mark.parametrize("on_error", ["replace", "skip"])
@pytest.mark.parametrize("settings", [THREADS, PROCESS], ids=["threads", "process"])
def test_bad_samples_leave_gaps_that_are_closed(memory, settings, on_error):
    changes = {"on_error": on_error, "max_error_rate": 1}
    alike = make_loader(FakeDataset(N, size=SIZE, bad=(3, 40, 47)), **changes)
    dataset = StagedFake(N, size=SIZE, bad=(3, 40, 47))
    with make_loader(dataset, **settings, **changes) as loader:
        loader.page_lock(memory)
        assert digests(loader) == digests(alike)


def test_a_process_that_is_killed_changes_nothing(memory):
    with staged(memory, **PROCESS) as loader:
        got = []
        for number, batch in enumerate(loader):
            got.append(digest(batch))
            if number == 5:
                os.kill(the_pool(loader).pids[0], 9)
        del batch
    assert got == expected()


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [THREADS, PROCESS], ids=["threads", "process"])
def test_on_cuda_batches_arrive_page_locked_and_whole(settings, monkeypatch):
    monkeypatch.setattr(memory_module, "_LEAST_BYTES", 1)
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
@pytest.mark.parametrize("settings", [THREADS, PROCESS], ids=["threads", "process"])
def test_on_cuda_a_loop_may_drop_a_batch_before_its_copy_is_through(settings):
    """A bare loader page-locks nothing, so that torch copies before the call returns."""
    images = [batch["image"] for batch in make_loader(FakeDataset(N, size=64))]
    with make_loader(StagedFake(N, size=64), **settings) as loader:
        torch.cuda._sleep(2_000_000_000)
        copies = [batch["image"].to("cuda", non_blocking=True) for batch in loader]
    assert all(torch.equal(copy.cpu(), image) for copy, image in zip(copies, images, strict=True))


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
