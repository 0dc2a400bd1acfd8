"""Copies to a device in streams of its own, in every order that streams may run in."""

from __future__ import annotations

import random
import weakref
from collections import deque
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.pipeline.loader import arena
from penstock.pipeline.loader.device import ring as device_ring
from penstock.pipeline.loader.device.accelerator import PageLock
from penstock.pipeline.loader.device.queue import DeviceQueue
from penstock.pipeline.loader.device.ring import Ring
from tests.deferred import SPOILED, Deferred, Order
from tests.pipeline.loader.fakes import FakeDataset, digest, make_loader
from tests.pipeline.loader.staged import RowsCollated, StagedFake

ORDERS: list[Order] = ["lazy", "eager", "random"]
SLOT_BYTES = 1 << 12


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(device_ring, "_POLL_S", 0)
    monkeypatch.setattr(device_ring, "_SMALL_BYTES", 512)
    monkeypatch.setattr(arena, "_LEAST_BYTES", 1)


class Slots:
    """Page-locked slots that are spoiled as soon as no array views them."""

    def __init__(self, lock: PageLock, count: int) -> None:
        self._map = lock.map(-1, count * SLOT_BYTES)
        self._free = deque(range(count))
        self._leases: dict[int, Any] = {}

    @property
    def leased(self) -> int:
        return len(self._leases)

    def lease(self) -> Any:
        slot = self._free.popleft()
        memory = np.frombuffer(self._map, np.uint8, SLOT_BYTES, slot * SLOT_BYTES)

        def free(ref: Any) -> None:
            del self._leases[slot]
            start = slot * SLOT_BYTES
            self._map[start : start + SLOT_BYTES] = bytes([SPOILED]) * SLOT_BYTES
            self._free.append(slot)

        self._leases[slot] = weakref.ref(memory, free)
        return memory


def batch_in(slots: Slots, number: int) -> dict[str, Any]:
    """Fields in a slot, one with strides, one far from the others, and one outside."""
    slot = slots.lease()
    image = torch.from_numpy(slot[:960]).view(10, 4, 8, 3).permute(0, 3, 1, 2)
    image.fill_(number % 251)
    label = torch.from_numpy(slot[960:1040]).view(torch.int64)
    label.copy_(torch.arange(10) + number)
    far = torch.from_numpy(slot[2048:2056]).view(torch.float32)
    far.fill_(number)
    outside = torch.full((3,), number, dtype=torch.int32)
    return {"image": image, "label": label, "deep": [{"far": far}], "n": number,
            "outside": outside, "none": torch.empty(0, 4)}  # fmt: skip


def change(batch: Any) -> Any:
    return {**batch, "twice": batch["image"].float() * 2, "row": batch["image"][2]}


def count_wrong(device: Deferred, batches: int) -> int:
    """Send batches through a ring, keep some, and count those that are not what they were."""
    lock = PageLock(device)
    ring = Ring(device, lock, depth=2, ended=lambda seconds: None)
    slots, rng = Slots(lock, 6), random.Random(0)
    kept: deque[tuple[int, Any]] = deque()
    taken: list[tuple[int, dict[str, torch.Tensor]]] = []
    with device:
        sent: deque[tuple[int, Any]] = deque()
        for number in range(batches + 1):
            if number < batches:
                sent.append((number, ring.send(batch_in(slots, number))))
            if len(sent) > rng.randrange(2) or number == batches:
                while sent and (len(sent) > 1 or number == batches):
                    which, slot = sent.popleft()
                    kept.append((which, ring.deliver(slot, change)))
                    del slot
            while len(kept) > rng.randrange(4):
                which, batch = kept.popleft()
                sums = {
                    name: batch[name].clone() for name in ("image", "label", "outside", "twice")
                }
                sums["far"] = batch["deep"][0]["far"].clone()
                sums["row"] = batch["row"].clone()
                del batch
                taken.append((which, sums))
        ring.retire(wait=True)
        assert device.ignored or slots.leased == 0
        return sum(is_wrong(device, there, which) for which, there in taken)


def is_wrong(device: Deferred, there: dict[str, torch.Tensor], number: int) -> bool:
    got = {name: device.read(tensor) for name, tensor in there.items()}
    image = torch.full((10, 3, 4, 8), number % 251, dtype=torch.uint8)
    expected = {"image": image, "twice": image.float() * 2, "row": image[2],
                "label": torch.arange(10) + number, "far": torch.full((2,), float(number)),
                "outside": torch.full((3,), number, dtype=torch.int32)}  # fmt: skip
    return not all(torch.equal(got[name], value) for name, value in expected.items())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(2))
def test_batches_arrive_whole_in_every_order(order, seed):
    assert count_wrong(Deferred(seed, order), 100) == 0


@pytest.mark.parametrize("mutation", ["filled", "freed", "ended"])
def test_it_sees_a_wait_that_is_missing(mutation):
    assert any(count_wrong(Deferred(seed, "random", mutation), 100) for seed in range(4))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_a_loader_feeds_the_device_in_every_order(engine, order):
    plain = [digest(batch) for batch in make_loader(FakeDataset(96, size=8))]
    device = Deferred(0, order)
    settings = {"engine": engine, "num_workers": 2, "collate": RowsCollated()}
    with make_loader(StagedFake(96, size=8), **settings) as loader, device:
        queue = DeviceQueue(loader, "cpu", accelerator=device)
        for turn in range(3):
            queue.set_epoch(0)
            batches = [{**batch} for batch in islice(queue, 12 if turn else 5)]
            assert queue.state_dict()["next_batch"] == len(batches)
            got = [mapped_back(device, batch) for batch in batches]
            assert got == plain[: len(batches)]
        assert queue.copy_s > 0
    del batches


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_batches_are_copied_by_the_host_where_memory_cannot_be_page_locked(engine, monkeypatch):
    plain = [digest(batch) for batch in make_loader(FakeDataset(96, size=8))]
    monkeypatch.setattr(Deferred, "register", lambda *_: False)
    device = Deferred(0, "random")
    settings = {"engine": engine, "num_workers": 2, "collate": RowsCollated()}
    with make_loader(StagedFake(96, size=8), **settings) as loader, device:
        queue = DeviceQueue(loader, "cpu", accelerator=device)
        assert [mapped_back(device, batch) for batch in queue] == plain
        assert not queue.pinned_bytes


def test_of_processes_the_main_process_touches_no_byte_of_a_batch(monkeypatch):
    """Pages of the arena that this process never read or wrote are not mapped in it."""
    size, device = 512, Deferred(0, "lazy")
    settings = {"engine": "processes", "num_workers": 1, "collate": RowsCollated()}
    with make_loader(StagedFake(32, size=size), **settings) as loader, device:
        queue = DeviceQueue(loader, "cpu", accelerator=device)
        monkeypatch.setattr(torch.Tensor, "copy_", lambda there, here, **_: there)
        batches = 0
        for _ in queue:
            batches += 1
        touched, mapped = touched_bytes()
    image_bytes = 8 * size * size * 3
    assert batches == 4 and mapped >= image_bytes
    # The kernel maps the pages around one that is touched: those of labels and the like.
    assert touched < image_bytes / 8


def touched_bytes() -> tuple[int, int]:
    """Return the bytes of the arena that this process has touched, and those that it maps."""
    touched = mapped = 0
    is_arena = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            is_arena = "memfd:penstock" in line
        elif is_arena and line.startswith(("Rss:", "Size:")):
            kilobytes = int(line.split()[1])
            touched += kilobytes * 1024 if line.startswith("Rss:") else 0
            mapped += kilobytes * 1024 if line.startswith("Size:") else 0
    return touched, mapped


def mapped_back(device: Deferred, batch: dict[str, Any]) -> str:
    """Return the hash of a batch of the device."""
    del batch["num_valid"]
    tensors = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
    assert all(map(device.is_there, tensors.values()))
    return digest({**batch, **{name: device.read(each) for name, each in tensors.items()}})
