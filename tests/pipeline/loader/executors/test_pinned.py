"""Batches in page-locked memory: nothing copied that need not be, and nothing overwritten."""

from __future__ import annotations

import gc
import os

import pytest
import torch

from penstock.pipeline.device import DevicePrefetcher, map_tensors
from penstock.pipeline.loader.memory import pinned_memory, pins
from penstock.pipeline.loader.settings import LoaderSettings
from tests.pipeline.loader.fakes import FakeDataset, digest, digests, make_loader, the_pool
from tests.pipeline.loader.staged import FakeMemory, RowsCollated, StagedFake, use_instead_of_cuda

N = 400
SIZE = 16
IMAGES = 8 * SIZE * SIZE * 3  # bytes of a batch's images
THREADS = {"engine": "threads", "num_workers": 2, "collate": RowsCollated()}
PROCESS = {**THREADS, "engine": "processes"}
FORKSERVER = {**PROCESS}


@pytest.fixture
def memory(monkeypatch):
    fake = FakeMemory()
    use_instead_of_cuda(monkeypatch, fake)
    return fake


def expected(epochs: int = 1, **settings):
    return digests(make_loader(FakeDataset(N, size=SIZE, **settings), pin_memory=False), epochs)


def staged(**changes):
    return make_loader(StagedFake(N, size=SIZE), **changes)


def test_threads_write_images_into_slabs_and_use_them_again(memory):
    with staged(**THREADS, across_epochs=False) as loader:
        got = []
        for _ in range(3):
            got += [digest(batch) for batch in loader]
    assert got == expected(3)
    assert IMAGES not in memory.pinned_bytes and len(set(memory.pinned_bytes)) > 1
    assert memory.pinned_bytes.count(8) == 3 * N / 8, "valid: 8 bytes a batch"
    # Of each tensor at most those computed ahead, those being computed, the loop's own.
    assert memory.slabs <= 6 * (4 + 2 + 2)
    del loader
    gc.collect()
    assert memory.lent == 0


def test_every_tensor_of_a_batch_has_the_storage_of_its_slab(memory):
    """By that alone torch's allocator knows which slab a copy is issued from."""
    slabs = []
    allocate = memory.allocate
    memory.allocate = lambda size_bytes: slabs.append(allocate(size_bytes)) or slabs[-1]
    with staged(**THREADS) as loader:
        batch = next(iter(loader))
    storages = {slab.untyped_storage()._cdata for slab in slabs}
    tensors = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
    assert {"image", "label", "index", "position", "epoch", "valid"} == tensors.keys()
    for name, tensor in tensors.items():
        assert tensor.untyped_storage()._cdata in storages, name


@pytest.mark.parametrize(
    "settings",
    [{**THREADS, "num_workers": 0}, THREADS, PROCESS],
    ids=["here", "threads", "process"],
)
def test_kept_batches_are_never_overwritten(memory, settings):
    with staged(**settings) as loader:
        kept = list(loader) + list(loader)
        assert [digest(batch) for batch in kept] == expected(2)
    assert [digest(batch) for batch in kept] == expected(2), "also after the workers are gone"


@pytest.mark.parametrize("settings", [THREADS, PROCESS], ids=["threads", "process"])
def test_rows_of_a_batch_are_enough_to_keep_it(memory, settings):
    with staged(**settings) as loader:
        rows = [batch["image"][3].numpy()[1:] for batch in loader]
        digests(loader)
    others = [
        batch["image"][3].numpy()[1:]
        for batch in make_loader(FakeDataset(N, size=SIZE), pin_memory=False)
    ]
    assert all((row == other).all() for row, other in zip(rows, others, strict=True))


@pytest.mark.parametrize("settings", [THREADS, PROCESS], ids=["threads", "process"])
def test_fetching_one_batch_ahead_of_the_loop(memory, settings):
    """As accelerate does: batch n + 1 is fetched before batch n is used."""
    got = []
    with staged(**settings) as loader:
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
    alike = make_loader(FakeDataset(N, size=SIZE, bad=(3, 40, 47)), pin_memory=False, **changes)
    dataset = StagedFake(N, size=SIZE, bad=(3, 40, 47))
    with make_loader(dataset, **settings, **changes) as loader:
        assert digests(loader) == digests(alike)


def test_it_is_for_those_who_have_cuda_and_want_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not pins(LoaderSettings(pin_memory=True))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not pins(LoaderSettings(pin_memory=False))
    assert pins(LoaderSettings())


def test_batches_of_a_process_arrive_pinned_and_their_slots_are_free_at_once(memory):
    with staged(**PROCESS) as loader:
        kept = list(loader)
        assert the_pool(loader)._arena._made <= 2 * 3 + 3, "though all are kept"
        assert memory.pinned_bytes.count(IMAGES) >= N / 8
    assert [digest(batch) for batch in kept] == expected()


def test_a_process_that_is_killed_changes_nothing(memory):
    with staged(**PROCESS) as loader:
        got = []
        for number, batch in enumerate(loader):
            got.append(digest(batch))
            if number == 5:
                os.kill(the_pool(loader).pids[0], 9)
        del batch
    assert got == expected()


@pytest.mark.gpu
def test_on_cuda_memory_is_used_again_once_it_is_copied():
    block = pinned_memory(1 << 20)
    assert block.is_pinned()
    address = block.data_ptr()
    torch.cuda._sleep(200_000_000)
    copy = block[7:].to("cuda", non_blocking=True)
    del block
    assert pinned_memory(1 << 20).data_ptr() != address, "the copy waits for the device"
    torch.cuda.synchronize()
    assert pinned_memory(1 << 20).data_ptr() == address
    del copy


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [THREADS, FORKSERVER], ids=["threads", "process"])
def test_on_cuda_batches_arrive_page_locked_and_whole(settings):
    expected = digests(make_loader(FakeDataset(N, size=64)), 2)
    with make_loader(StagedFake(N, size=64), **settings) as loader:
        got = []
        for batch in DevicePrefetcher(loader, "cuda"):
            torch.cuda._sleep(1_000_000)
            del batch["num_valid"]
            got.append(map_tensors(batch, torch.Tensor.cpu))
        assert [digest(batch) for batch in got] == expected[: N // 8]
        for batch in loader:
            tensors = [value for value in batch.values() if isinstance(value, torch.Tensor)]
            assert len(tensors) == 5 and all(tensor.is_pinned() for tensor in tensors)


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [THREADS, FORKSERVER], ids=["threads", "process"])
def test_on_cuda_a_loop_may_drop_a_batch_before_its_copy_is_through(settings):
    """As everybody's loop does: copy without blocking, and go on to the next."""
    images = [batch["image"] for batch in make_loader(FakeDataset(N, size=64))]
    with make_loader(StagedFake(N, size=64), **settings) as loader:
        torch.cuda._sleep(2_000_000_000)
        copies = [batch["image"].to("cuda", non_blocking=True) for batch in loader]
    assert all(torch.equal(copy.cpu(), image) for copy, image in zip(copies, images, strict=True))
