"""Batches in shared memory: what crosses, what is used again, and what is never overwritten."""

from __future__ import annotations

import gc
import logging
import mmap
import os
import resource
import signal
import time
from typing import NamedTuple

import pytest
import torch

from pipeline.loader.ring.packing import Parcel, Placed, unpack
from pipeline.loader.ring.slots import SlotPool
from tests.pipeline.loader.fakes import FakeDataset, digest, digests, make_loader

RING = {
    "engine": "ring", "processes": 1, "num_workers": 2, "multiprocessing_context": "fork",
}  # fmt: skip
N = 400
MOST_SLOTS = 2 * 2 + 3 + 2
"""Computed ahead, held by the consumer, and those of batches that nobody waits for any more."""


def _crossed(value):
    parcel = Parcel(value)
    memory = mmap.mmap(-1, max(parcel.size_bytes, 1))
    parcel.write(memory)
    return unpack(parcel.packed, memoryview(memory)), parcel


def test_every_type_and_layout_crosses():
    dtypes = [torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.bool,
              torch.complex64]  # fmt: skip
    batch = {
        **{str(dtype): (torch.arange(7) % 2).to(dtype) for dtype in dtypes},
        "image": torch.rand(2, 3, 5, 4).to(memory_format=torch.channels_last),
        "transposed": torch.rand(3, 4).t(),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "expanded": torch.ones(1, 3).expand(4, 3),
        "nested": {"list": [torch.ones(2), "a"], "tuple": (torch.zeros(3), None)},
        "key": ["a", "b"],
        "sparse": torch.eye(3).to_sparse(),
        "weights": torch.ones(2, requires_grad=True),
    }
    got, parcel = _crossed(batch)
    assert list(got) == list(batch)
    assert isinstance(parcel.packed["image"], Placed)
    for name in (*map(str, dtypes), "image", "transposed", "scalar", "empty", "expanded"):
        assert torch.equal(got[name], batch[name]) and got[name].dtype == batch[name].dtype
    assert got["image"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(got["nested"]["list"][0], torch.ones(2))
    assert torch.equal(got["nested"]["tuple"][0], torch.zeros(3))
    assert got["key"] == ["a", "b"] and got["sparse"] is batch["sparse"]
    assert got["weights"] is batch["weights"]


class _Pair(NamedTuple):
    number: int
    tensor: torch.Tensor


class _Kind(torch.Tensor):
    pass


def test_what_is_more_than_a_tensor_stays_what_it_is():
    batch = {
        "parameter": torch.nn.Parameter(torch.ones(3), requires_grad=False),
        "subclass": torch.ones(3).as_subclass(_Kind),
        "named": _Pair(1, torch.ones(2)),
    }
    got, parcel = _crossed(batch)
    assert all(got[name] is batch[name] for name in batch) and parcel.size_bytes == 0


def test_a_slot_comes_back_with_the_last_view_of_it():
    pool = SlotPool(2)
    slot = pool.take()
    view = pool.lease(slot, 100)
    tensor = torch.frombuffer(view, dtype=torch.uint8, count=10)
    rest = tensor[3:].view(7).numpy()
    other = pool.take()
    assert other is not slot
    del view, tensor
    gc.collect()
    assert pool.take() not in (slot, other)
    del rest
    assert pool.take() is slot


def test_a_slot_grows_and_leaves_the_old_view_alone():
    pool = SlotPool(1)
    slot = pool.take()
    view = pool.lease(slot, 10)
    view[:10] = b"0123456789"
    larger = slot.memory(5 << 20)
    assert len(larger) >= 5 << 20 and bytes(view[:10]) == b"0123456789"


def test_further_batches_are_copied_which_is_said_once_and_takes_no_descriptor(caplog):
    before = len(os.listdir("/proc/self/fd"))
    pool = SlotPool(2)
    views = []
    with caplog.at_level(logging.INFO):
        for number in range(30):
            slot = pool.take()
            slot.memory(100)[:2] = b"%02d" % number
            views.append(pool.lease(slot, 100))
    assert [bytes(view[:2]) for view in views] == [b"%02d" % number for number in range(30)]
    assert len([m for m in caplog.messages if "2 batches are kept" in m]) == 1
    assert len(os.listdir("/proc/self/fd")) == before + 3 * 2  # a mapping has one of its own
    del views
    pool.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("processes", [0, 1, 2])
def test_kept_batches_are_never_overwritten(processes):
    settings = {**RING, "processes": processes}
    expected = digests(make_loader(FakeDataset(N)), epochs=2)
    with make_loader(FakeDataset(N), **settings) as loader:
        kept = list(loader)
        kept += list(loader)
        assert [digest(batch) for batch in kept] == expected
    assert [digest(batch) for batch in kept] == expected, "also after the workers are gone"


def test_a_view_of_a_batch_is_enough_to_keep_it():
    with make_loader(FakeDataset(N), **RING) as loader:
        rows = [batch["image"][1].numpy() for batch in loader]
        digests(loader)
    expected = [batch["image"][1].numpy() for batch in make_loader(FakeDataset(N))]
    assert all((row == other).all() for row, other in zip(rows, expected, strict=True))


def test_fetching_one_batch_ahead_of_the_loop():
    """As accelerate does: batch n + 1 is fetched before batch n is used."""
    expected = digests(make_loader(FakeDataset(N)))
    got = []
    with make_loader(FakeDataset(N), **RING) as loader:
        iterator = iter(loader)
        current = next(iterator)
        for following in iterator:
            got.append(digest(current))
            current = following
        got.append(digest(current))
    assert got == expected


def test_an_ordinary_loop_uses_its_slots_again(caplog):
    with caplog.at_level(logging.INFO), make_loader(FakeDataset(N), **RING) as loader:
        for _ in range(3):
            for batch in loader:
                digest(batch)
        assert next(loader._engine._crew._slots._numbers) <= 2 * 2 + 3
        assert "are kept" not in caplog.text


@pytest.mark.parametrize(("slow_s", "pause_s"), [(0.02, 0), (0, 0.05)])
def test_what_is_broken_off_gives_its_slots_back(slow_s, pause_s):
    changes = {**RING, "across_epochs": False}
    with make_loader(FakeDataset(80, slow_s=slow_s), **changes) as loader:
        for _ in range(8):
            batches = iter(loader)
            next(batches)
            time.sleep(pause_s)  # in which the others come; without, they are under way
            batches.close()
            del batches
        digests(loader)
        assert next(loader._engine._crew._slots._numbers) <= MOST_SLOTS


def test_what_was_dropped_when_its_process_ends_gives_its_slot_back():
    changes = {**RING, "across_epochs": False}
    with make_loader(FakeDataset(80, slow_s=0.1), **changes) as loader:
        for _ in range(5):
            batches = iter(loader)
            next(batches)
            pid = loader._engine._crew.pids[0]
            batches.close()
            os.kill(pid, signal.SIGKILL)
            while loader._engine._crew.pids[0] == pid:
                time.sleep(0.005)
        digests(loader)
        assert next(loader._engine._crew._slots._numbers) <= MOST_SLOTS


def test_many_kept_batches_do_not_run_out_of_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, len(os.listdir("/proc/self/fd")) + 60),
                                                hard))  # fmt: skip
    try:
        with make_loader(FakeDataset(N), batch_size=1, **RING) as loader:
            assert len(list(loader)) == N
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class _Ragged(FakeDataset):
    def _one(self, index, position, epoch):
        self.size = 4 + 40 * (position // 8 % 3)
        return super()._one(index, position, epoch)


def test_batches_of_differing_sizes():
    with make_loader(_Ragged(N), **{**RING, "num_workers": 1}) as loader:
        assert digests(loader) == digests(make_loader(_Ragged(N)))
