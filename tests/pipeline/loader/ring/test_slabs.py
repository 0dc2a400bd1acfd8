"""Batches in page-locked memory: nothing copied that need not be, and nothing overwritten."""

from __future__ import annotations

import gc
import mmap
import os

import pytest
import torch

from pipeline.loader.ring.packing import Parcel, Placed, unpack
from pipeline.loader.ring.slots import _MOST_FENCED, Slot, SlotPool, address_of
from tests.pipeline.loader.fakes import FakeDataset, digest, digests, make_loader
from tests.pipeline.loader.staged import FakeMemory, RowsCollated, StagedFake, use_instead_of_cuda

N = 400
SIZE = 16
IMAGES = 8 * SIZE * SIZE * 3  # bytes of a batch's images
THREADS = {"engine": "ring", "num_workers": 2, "collate": RowsCollated()}
PROCESS = {**THREADS, "processes": 1, "multiprocessing_context": "fork"}


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


@pytest.fixture
def slot_memory():
    """A slot in which a batch's images lie already: 600 bytes."""
    memory = mmap.mmap(-1, 4096)
    torch.frombuffer(memory, dtype=torch.uint8, count=600)[:] = torch.arange(600) % 127
    return memory


def crossed(value, slot_memory):
    """The parcel of a value, and what is unpacked of it, which is equal."""
    before = {name: tensor.clone() for name, tensor in value.items()}
    parcel = Parcel(value, address=address_of(slot_memory), filled_bytes=600)
    parcel.write(slot_memory)
    got = unpack(parcel.packed, memoryview(slot_memory))
    assert all(torch.equal(got[name], before[name]) for name in before)
    return parcel, got


def test_slots_that_come_back_late_are_closed():
    pool = SlotPool(3, locks=FakeMemory(passed=False))
    late, waits, leased = (pool.take() for _ in range(3))
    pool.lease(waits, 100)  # its view is gone, and the device has not come past it
    pool.lease(leased, 100)
    pool.close()
    assert (late.fd >= 0, waits.fd, leased.fd) == (True, -1, -1)
    pool.give_back(late)
    assert late.fd == -1


def test_what_lies_in_the_slot_is_not_copied(slot_memory):
    there = torch.frombuffer(slot_memory, dtype=torch.uint8, count=600)
    value = {
        "image": there.view(2, 10, 30),
        "part": there[8:24].view(torch.int64),
        "odd": there[1:17].view(2, 8).t(),
        "label": torch.arange(3),
    }
    parcel, got = crossed(value, slot_memory)
    assert parcel.packed["image"] == Placed(0, torch.uint8, (2, 10, 30), None)
    assert parcel.packed["part"] == Placed(8, torch.int64, (2,), None)
    assert {placed.offset for placed, _ in parcel._tensors} == {640, 704}
    assert got["image"].data_ptr() == there.data_ptr()


def test_what_lies_in_the_slot_unaligned_is_not_written_over(slot_memory):
    odd = torch.frombuffer(slot_memory, dtype=torch.int64, count=4, offset=3)
    crossed({"label": torch.full((8,), 7), "odd": odd}, slot_memory)


def test_a_view_of_the_slot_that_its_bytes_do_not_say_all_about_stays_equal(slot_memory):
    floats = torch.frombuffer(slot_memory, dtype=torch.float32, count=32)
    negated = torch.view_as_complex(floats[16:].view(8, 2)).conj().imag
    assert negated.is_neg()
    conjugate = torch.view_as_complex(floats[:16].view(8, 2)).conj()
    crossed({"conjugate": conjugate, "negated": negated}, slot_memory)


def test_a_place_that_no_tensor_takes_is_not_spared(slot_memory):
    parcel = Parcel({"image": torch.ones(7)}, address=address_of(slot_memory), filled_bytes=600)
    assert parcel.packed["image"].offset == 0 and parcel.size_bytes == 64


class _Growing(StagedFake):
    @property
    def row_shape(self):
        return None  # differs from batch to batch

    def _one(self, index, position, epoch):
        self.size = 40 * (1 + position // 80)
        return super()._one(index, position, epoch)


def test_slots_are_registered_once_and_given_back_before_they_are_unmapped(memory):
    with staged(**PROCESS) as loader:
        for _ in range(3):
            for batch in loader:
                assert any(
                    start <= batch["image"].data_ptr() < start + size
                    for start, size in memory.registered.items()
                )
        registered = [address for call, address in memory.calls if call == "register"]
        assert len(registered) == len(set(registered)) <= 2 * 2 + 3
        kept = digest(batch), batch
        del batch
    gc.collect()
    assert len(memory.registered) == 1, "the kept one"
    assert digest(kept[1]) == kept[0]
    del kept
    gc.collect()
    assert not memory.registered
    assert len(memory.calls) == 2 * len(registered)


def test_slots_that_grow_are_registered_anew(memory):
    settings = {**PROCESS, "num_workers": 1, "batch_size": 40}
    alike = make_loader(_Growing(N), batch_size=40, pin_memory=False)
    with make_loader(_Growing(N), **settings) as loader:
        assert digests(loader) == digests(alike)
    gc.collect()
    assert not memory.registered
    count = len(memory.calls)
    assert count > 2 * (2 + 3), "more mappings than slots"


def test_what_cannot_be_registered_arrives_all_the_same(memory):
    memory.refuses = True
    with staged(**PROCESS) as loader:
        assert digests(loader, 2) == expected(2)
    gc.collect()
    assert memory.pinned_bytes.count(IMAGES) == 2 * N / 8
    assert {call for call, _ in memory.calls} == {"register"}


def test_a_process_that_is_killed_leaves_nothing_registered(memory):
    with staged(**PROCESS) as loader:
        got = []
        for number, batch in enumerate(loader):
            got.append(digest(batch))
            if number == 5:
                os.kill(loader._engine._crew.pids[0], 9)
        del batch
    assert got == expected()
    gc.collect()
    assert not memory.registered


def _lease(pool: SlotPool) -> tuple[Slot, memoryview]:
    slot = pool.take()
    return slot, pool.lease(slot, 100)


def test_a_slot_is_used_again_when_the_device_has_come_past_it():
    memory = FakeMemory(passed=False)
    pool = SlotPool(3, locks=memory)
    first, view = _lease(pool)
    del view
    second, view = _lease(pool)
    assert second is not first and len(memory.fences) == 1, "marked by the consumer's own call"
    third = pool.take()
    assert third not in (first, second)
    pool.give_back(third)
    memory.fences[0].passed = True
    assert pool.take() is third and pool.take() not in (first, second), "not asked for here"
    _, other = _lease(pool)
    assert pool.take() is first
    pool.give_back(first)
    del view, other
    pool.close()
    assert not memory.registered


def test_a_program_far_ahead_of_the_device_is_held_up():
    memory = FakeMemory(passed=False)
    pool = SlotPool(3, locks=memory)
    for _ in range(_MOST_FENCED + 5):
        _lease(pool)
    assert [fence.waited_for for fence in memory.fences] == [True] * 4 + [False] * _MOST_FENCED
    assert next(pool._numbers) <= _MOST_FENCED + 2
    pool.close()
