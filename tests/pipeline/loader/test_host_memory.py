"""Page-locked memory: what can be tried without a GPU, and what needs one."""

from __future__ import annotations

import gc
import logging
import mmap
from types import SimpleNamespace

import pytest
import torch

from pipeline.copy_stream import map_tensors
from pipeline.device import DevicePrefetcher
from pipeline.loader.host_memory import CudaHostMemory, host_memory
from pipeline.loader.ring.slots import Slot, SlotPool, address_of
from pipeline.loader.settings import LoaderSettings
from tests.pipeline.loader.fakes import FakeDataset, digest, digests, make_loader
from tests.pipeline.loader.staged import RowsCollated, StagedFake

N, SIZE = 400, 64


def test_it_is_for_those_who_have_cuda_and_want_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert host_memory(LoaderSettings(pin_memory=True)) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert host_memory(LoaderSettings(pin_memory=False)) is None
    assert isinstance(host_memory(LoaderSettings()), CudaHostMemory)


class FakeRuntime:
    """CUDA's calls, written down."""

    def __init__(self, code: int) -> None:
        self.code, self.calls = code, []

    def cudaHostRegister(self, address, size_bytes, flags):
        self.calls.append(("register", address, size_bytes, flags))
        return self.code

    def cudaHostUnregister(self, address):
        self.calls.append(("unregister", address))
        return 0


@pytest.mark.parametrize("code", [0, 2])
def test_a_slot_is_registered_with_cuda_for_as_long_as_it_is_mapped(monkeypatch, caplog, code):
    runtime = FakeRuntime(code)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: runtime.calls.append(("wait",)))
    monkeypatch.setattr(torch, "ones", lambda *shape, device: runtime.calls.append(("launch",)))
    event = SimpleNamespace(record=lambda: None, query=lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    pool = SlotPool(2, locks=CudaHostMemory())
    slots = [pool.take() for _ in range(2)]
    views = [pool.lease(slot, 100) for slot in slots for _ in range(2)]
    addresses = [address_of(slot.memory(1)) for slot in slots]
    length = len(slots[0].memory(1))
    registered = [call for call in runtime.calls if call[0] == "register"]
    assert registered == [("register", address, length, 1) for address in addresses]
    assert caplog.text.count("does not page-lock") == (code == 2)
    runtime.calls.clear()
    del views, slots
    pool.close()
    gc.collect()
    if code:
        assert runtime.calls == []
    else:
        assert sorted(runtime.calls) == sorted(
            [("unregister", address) for address in addresses] + [("wait",)] * 2
        )
        assert runtime.calls[0] == ("wait",), "for what is copied from there"


@pytest.mark.gpu
def test_on_cuda_slabs_are_used_again_once_they_are_copied():
    memory = CudaHostMemory()
    slab = memory.allocate(1 << 20)
    assert slab.is_pinned() and memory.pin(slab) is slab
    address = slab.data_ptr()
    torch.cuda._sleep(200_000_000)
    copy = slab[7:].to("cuda", non_blocking=True)
    del slab
    assert memory.allocate(1 << 20).data_ptr() != address, "the copy waits for the device"
    torch.cuda.synchronize()
    assert memory.allocate(1 << 20).data_ptr() == address
    del copy


@pytest.mark.gpu
def test_on_cuda_what_is_mapped_is_page_locked(caplog):
    memory = mmap.mmap(-1, 8 << 20)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    locks = CudaHostMemory()
    assert not tensor.is_pinned() and locks.register(address_of(memory), len(memory))
    assert tensor.is_pinned() and tensor[1000:].is_pinned()
    locks.unregister(address_of(memory))
    assert not tensor.is_pinned()
    with caplog.at_level(logging.WARNING):
        assert not locks.register(1 << 12, 1 << 12)
    assert "does not page-lock" in caplog.text
    assert int(torch.ones(3, device="cuda").sum()) == 3, "the refusal is nobody else's error"


@pytest.mark.gpu
def test_on_cuda_a_slot_waits_for_the_copies_from_it():
    pool = SlotPool(2, locks=CudaHostMemory())
    slot: Slot = pool.take()
    tensor = torch.frombuffer(pool.lease(slot, 1 << 20), dtype=torch.uint8)
    torch.cuda._sleep(200_000_000)
    copy = tensor.to("cuda", non_blocking=True)
    del tensor
    pool.lease(pool.take(), 100)
    assert pool.take() is not slot
    torch.cuda.synchronize()
    pool.lease(pool.take(), 100)
    assert slot in pool._free
    del copy
    pool.close()


SETTINGS = {"engine": "ring", "num_workers": 2, "collate": RowsCollated()}
PROCESS = {**SETTINGS, "processes": 1, "multiprocessing_context": "forkserver"}


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [SETTINGS, PROCESS], ids=["threads", "process"])
def test_on_cuda_batches_arrive_page_locked_and_whole(settings):
    expected = digests(make_loader(FakeDataset(N, size=SIZE)), 2)
    with make_loader(StagedFake(N, size=SIZE), **settings) as loader:
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
@pytest.mark.parametrize("settings", [SETTINGS, PROCESS], ids=["threads", "process"])
def test_on_cuda_a_loop_may_drop_a_batch_before_its_copy_is_through(settings):
    """As everybody's loop does: copy without blocking, and go on to the next."""
    images = [batch["image"] for batch in make_loader(FakeDataset(N, size=SIZE))]
    with make_loader(StagedFake(N, size=SIZE), **settings) as loader:
        torch.cuda._sleep(2_000_000_000)
        copies = [batch["image"].to("cuda", non_blocking=True) for batch in loader]
    assert all(torch.equal(copy.cpu(), image) for copy, image in zip(copies, images, strict=True))
