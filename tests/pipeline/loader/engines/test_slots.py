"""Batches in shared memory: what crosses, what is used again, and what is never overwritten."""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from penstock.pipeline.loader.engines.slots import SlotPool, pack, unpack
from tests.pipeline.loader.fakes import FakeDataset, digest, digests, make_loader, the_pool

PROCESS = {
    "engine": "processes", "processes": 1, "num_workers": 2, "multiprocessing_context": "fork",
}  # fmt: skip
N = 400
MOST_SLOTS = 2 * 2 + 3 + 2
"""Computed ahead, held by the consumer, and those of batches that nobody waits for any more."""


@pytest.fixture
def slot():
    pool = SlotPool(1)
    slot = pool.take()
    yield slot
    slot.close()


def _crossed(value, slot):
    packed = pack(value, slot)
    return unpack(packed, slot.memory(packed.size_bytes) if packed.size_bytes else None), packed


def test_every_type_and_layout_crosses(slot):
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
    got, packed = _crossed(batch, slot)
    assert list(got) == list(batch)
    assert len(packed.places) == 15
    for name in (*map(str, dtypes), "image", "transposed", "scalar", "empty", "expanded"):
        assert torch.equal(got[name], batch[name]) and got[name].dtype == batch[name].dtype
    assert got["image"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(got["nested"]["list"][0], torch.ones(2))
    assert torch.equal(got["nested"]["tuple"][0], torch.zeros(3))
    assert got["key"] == ["a", "b"]
    assert torch.equal(got["sparse"].to_dense(), torch.eye(3))
    assert got["weights"].requires_grad


class _Pair(NamedTuple):
    number: int
    tensor: torch.Tensor


class _Kind(torch.Tensor):
    pass


def test_what_is_more_than_a_tensor_stays_what_it_is(slot):
    batch = {
        "parameter": torch.nn.Parameter(torch.ones(3), requires_grad=False),
        "subclass": torch.ones(3).as_subclass(_Kind),
        "named": _Pair(1, torch.ones(2)),
    }
    got, _ = _crossed(batch, slot)
    assert all(type(got[name]) is type(batch[name]) for name in batch)
    assert torch.equal(got["named"].tensor, torch.ones(2))


def test_arrays_and_nothing_cross(slot):
    got, _ = _crossed({"array": np.arange(5), "empty": np.empty((0, 3)), "none": None}, slot)
    assert got["array"].tolist() == [0, 1, 2, 3, 4] and got["empty"].shape == (0, 3)
    got, packed = _crossed([np.empty(0)], slot)
    assert got[0].size == 0 and packed.size_bytes == 0


@pytest.fixture
def filled(slot):
    """The beginning of the slot, in which a batch's images lie already: 600 bytes."""
    memory = slot.memory(600)
    memory[:] = np.arange(600) % 127
    return memory


def crossed(value, slot, filled):
    """What was packed of a value, and what is unpacked of it, which is equal."""
    before = {name: tensor.clone() for name, tensor in value.items()}
    packed = pack(value, slot, filled=filled)
    got = unpack(packed, slot.memory(packed.size_bytes))
    assert all(torch.equal(got[name], before[name]) for name in before)
    return packed, got


def test_slots_that_come_back_late_are_closed():
    pool = SlotPool(3)
    late, leased = (pool.take() for _ in range(2))
    view = pool.lease(leased, 100)
    pool.close()
    assert (late.fd >= 0, leased.fd, len(view) > 0) == (True, -1, True)
    pool.give_back(late)
    assert late.fd == -1


def test_what_lies_in_the_slot_is_not_copied(slot, filled):
    there = torch.from_numpy(filled)
    value = {
        "image": there.view(2, 10, 30),
        "part": there[8:24].view(torch.int64),
        "odd": there[1:17].view(2, 8).t(),
        "label": torch.arange(3),
    }
    packed, got = crossed(value, slot, filled)
    assert packed.places == [(0, 600), (8, 16), (640, 16), (704, 24)]
    assert got["image"].data_ptr() == there.data_ptr()


def test_what_lies_in_the_slot_unaligned_is_not_written_over(slot, filled):
    odd = torch.frombuffer(filled, dtype=torch.int64, count=4, offset=3)
    crossed({"label": torch.full((8,), 7), "odd": odd}, slot, filled)


def test_a_view_of_the_slot_that_its_bytes_do_not_say_all_about_stays_equal(slot, filled):
    floats = torch.frombuffer(filled, dtype=torch.float32, count=32)
    negated = torch.view_as_complex(floats[16:].view(8, 2)).conj().imag
    assert negated.is_neg()
    conjugate = torch.view_as_complex(floats[:16].view(8, 2)).conj()
    crossed({"conjugate": conjugate, "negated": negated}, slot, filled)


def test_a_slot_comes_back_with_the_last_view_of_it():
    pool = SlotPool(2)
    slot = pool.take()
    view = pool.lease(slot, 100)
    tensor = unpack(pack(torch.arange(10, dtype=torch.uint8), slot), view)
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
    view[:10] = 7
    assert len(slot.memory(5 << 20)) == 5 << 20 and view.tolist() == [7] * 10


def test_further_batches_are_copied_which_is_said_once_and_takes_no_descriptor(caplog):
    before = _slot_descriptors()
    pool = SlotPool(2)
    views = []
    with caplog.at_level(logging.INFO):
        for number in range(30):
            slot = pool.take()
            slot.memory(100)[:2] = number
            views.append(pool.lease(slot, 100))
    assert [view[1] for view in views] == list(range(30))
    assert len([m for m in caplog.messages if "2 batches are kept" in m]) == 1
    assert len(_slot_descriptors() - before) == 3 * 2  # a mapping has one of its own
    del views
    pool.close()
    assert not _slot_descriptors() - before


def _slot_descriptors():
    """The descriptors of slots, with their inodes; other tests may have left some of theirs."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            if "memfd:penstock" in os.readlink(entry):
                found.add((entry.name, entry.stat().st_ino))
    return found


@pytest.mark.parametrize("processes", [0, 1, 2])
def test_kept_batches_are_never_overwritten(processes):
    engine = {"engine": "processes"} if processes else {"engine": "threads"}
    settings = {**PROCESS, **engine, "processes": processes}
    expected = digests(make_loader(FakeDataset(N)), epochs=2)
    with make_loader(FakeDataset(N), **settings) as loader:
        kept = list(loader)
        kept += list(loader)
        assert [digest(batch) for batch in kept] == expected
    assert [digest(batch) for batch in kept] == expected, "also after the workers are gone"


def test_a_view_of_a_batch_is_enough_to_keep_it():
    with make_loader(FakeDataset(N), **PROCESS) as loader:
        rows = [batch["image"][1].numpy() for batch in loader]
        digests(loader)
    expected = [batch["image"][1].numpy() for batch in make_loader(FakeDataset(N))]
    assert all((row == other).all() for row, other in zip(rows, expected, strict=True))


def test_fetching_one_batch_ahead_of_the_loop():
    """As accelerate does: batch n + 1 is fetched before batch n is used."""
    expected = digests(make_loader(FakeDataset(N)))
    got = []
    with make_loader(FakeDataset(N), **PROCESS) as loader:
        iterator = iter(loader)
        current = next(iterator)
        for following in iterator:
            got.append(digest(current))
            current = following
        got.append(digest(current))
    assert got == expected


def test_an_ordinary_loop_uses_its_slots_again(caplog):
    with caplog.at_level(logging.INFO), make_loader(FakeDataset(N), **PROCESS) as loader:
        for _ in range(3):
            for batch in loader:
                digest(batch)
        assert next(the_pool(loader)._slots._numbers) <= 2 * 2 + 3
        assert "are kept" not in caplog.text


@pytest.mark.parametrize(("slow_s", "pause_s"), [(0.02, 0), (0, 0.05)])
def test_what_is_broken_off_gives_its_slots_back(slow_s, pause_s):
    changes = {**PROCESS, "across_epochs": False}
    with make_loader(FakeDataset(80, slow_s=slow_s), **changes) as loader:
        for _ in range(8):
            batches = iter(loader)
            next(batches)
            time.sleep(pause_s)  # in which the others come; without, they are under way
            batches.close()
            del batches
        digests(loader)
        assert next(the_pool(loader)._slots._numbers) <= MOST_SLOTS


def test_what_was_dropped_when_its_process_ends_gives_its_slot_back():
    changes = {**PROCESS, "across_epochs": False}
    with make_loader(FakeDataset(80, slow_s=0.1), **changes) as loader:
        for _ in range(5):
            batches = iter(loader)
            next(batches)
            pid = the_pool(loader).pids[0]
            batches.close()
            os.kill(pid, signal.SIGKILL)
            while the_pool(loader).pids[0] == pid:
                time.sleep(0.005)
        digests(loader)
        assert next(the_pool(loader)._slots._numbers) <= MOST_SLOTS


def test_many_kept_batches_do_not_run_out_of_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, len(os.listdir("/proc/self/fd")) + 60),
                                                hard))  # fmt: skip
    try:
        with make_loader(FakeDataset(N), batch_size=1, **PROCESS) as loader:
            assert len(list(loader)) == N
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class _Ragged(FakeDataset):
    def _one(self, index, position, epoch):
        self.size = 4 + 40 * (position // 8 % 3)
        return super()._one(index, position, epoch)


def test_batches_of_differing_sizes():
    with make_loader(_Ragged(N), **{**PROCESS, "num_workers": 1}) as loader:
        assert digests(loader) == digests(make_loader(_Ragged(N)))
