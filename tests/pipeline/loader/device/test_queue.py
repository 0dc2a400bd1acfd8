from __future__ import annotations

import weakref
from itertools import islice

import pytest
import torch

from penstock.pipeline.loader.device import ring as device_ring
from penstock.pipeline.loader.device.queue import DeviceQueue
from penstock.pipeline.loader.stats import LoaderStats
from tests.deferred import Deferred
from tests.pipeline.loader.fakes import FakeDataset, make_loader
from tests.waiting import wait_until


class Counting:
    """Yields batches of two rows and counts those it has handed out."""

    def __init__(self, batches: int, *, pin: bool = False) -> None:
        self.batches, self.pin = batches, pin
        self.given, self.closed, self.epoch = 0, False, 0
        self.images: list[weakref.ref[torch.Tensor]] = []

    @property
    def held(self) -> int:
        """Batches in host memory that are not let go of."""
        return sum(image() is not None for image in self.images)

    def __len__(self):
        return self.batches

    def __iter__(self):
        try:
            for number in range(self.given, self.batches):
                self.given = number + 1
                image = torch.full((2, 256, 256, 3), number, dtype=torch.uint8)
                image = image.pin_memory() if self.pin else image
                self.images.append(weakref.ref(image))
                batch = {
                    "image": image,
                    "label": torch.tensor([number, -number]),
                    "valid": torch.tensor([True, number % 2 == 0]),
                    "key": [f"{number}a", f"{number}b"],
                    "boxes": [torch.ones(number, 4), torch.zeros(1, 4)],
                }
                del image
                yield batch
                del batch
        finally:
            self.closed = True

    def set_epoch(self, epoch):
        self.epoch, self.given = epoch, 0

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


def to_float(batch):
    return {**batch, "image": batch["image"].float() * 2}


def check(device: str, pin: bool) -> None:
    loader = Counting(7, pin=pin)
    prefetcher = DeviceQueue(loader, device, [to_float])
    assert len(prefetcher) == 7
    numbers = []
    for batch in prefetcher:
        number = len(numbers)
        assert prefetcher.state_dict() == {"given": number + 1}
        assert batch["image"].device.type == device and batch["image"].dtype == torch.float32
        assert batch["boxes"][0].device.type == device and batch["boxes"][0].shape == (number, 4)
        if device == "cuda":  # keep the compute stream busy, so that a missing wait would show
            torch.cuda._sleep(2_000_000)
        assert (batch["image"] == 2 * number).all()
        assert batch["label"].tolist() == [number, -number]
        assert batch["key"] == [f"{number}a", f"{number}b"]
        assert batch["num_valid"] == 2 - number % 2
        numbers.append(number)
    assert numbers == list(range(7))
    assert prefetcher.wait_s > 0


def test_batches_arrive_in_order_transformed_and_counted():
    check("cpu", pin=False)


@pytest.mark.gpu
@pytest.mark.parametrize("pin", [False, True])
def test_on_cuda_nothing_is_read_before_it_is_copied(pin):
    check("cuda", pin)


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(device_ring, "_POLL_S", 0)
    with Deferred(0, "lazy") as device:
        yield device


def test_a_batch_is_yielded_as_soon_as_its_copy_is_issued(device):
    loader = Counting(6)
    loader.stats = LoaderStats()
    queue = DeviceQueue(loader, "cpu", [to_float], accelerator=device)
    for number, batch in enumerate(queue):
        assert loader.given == number + 1, "this loader does not say that it has the next one"
        assert queue.state_dict() == {"given": number + 1}
        assert loader.held <= 2, "the device has read all but the last two"
        assert (device.read(batch["image"]) == 2 * number).all() and batch["key"][0] == f"{number}a"
    assert queue.copy_s == loader.stats.times.copy == 6 * 0.25
    assert not loader.held


def test_leaving_early_waits_for_copies_under_way(device):
    loader = Counting(6)
    queue = DeviceQueue(loader, "cpu", accelerator=device)
    batches = iter(queue)
    list(islice(batches, 2))
    assert loader.held
    batches.close()
    assert not loader.held and loader.closed
    assert queue.state_dict() == {"given": 2}, "of yielded batches"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda prefetcher: prefetcher.set_epoch(3), 0),
        (lambda prefetcher: prefetcher.load_state_dict({"given": 4}), 4),
    ],
    ids=["set_epoch", "load_state_dict"],
)
def test_a_place_that_is_set_after_leaving_early_counts(change, expected, device):
    prefetcher = DeviceQueue(Counting(6), "cpu", accelerator=device)
    batches = iter(prefetcher)
    list(islice(batches, 2))
    batches.close()
    change(prefetcher)
    assert prefetcher.state_dict() == {"given": expected}


class Failing(Counting):
    def __iter__(self):
        for batch in super().__iter__():
            if self.given == 3:
                raise OSError("the disk is gone")
            yield batch


def test_the_batches_before_an_error_are_yielded(device):
    queue = DeviceQueue(Failing(6), "cpu", accelerator=device)
    batches = iter(queue)
    assert len(list(islice(batches, 2))) == 2
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    assert queue.state_dict() == {"given": 2}


def test_an_epoch_left_before_its_last_batch_begins_again_whatever_was_copied_ahead(device):
    with make_loader(FakeDataset(40), engine="threads", num_workers=2) as loader:

        def after_the_next_is_ready(batch):
            wait_until(lambda: loader.is_ready)
            return batch

        queue = DeviceQueue(loader, "cpu", [after_the_next_is_ready], accelerator=device)
        list(islice(queue, 4))
        assert loader.state_dict()["next_batch"] == 5
        assert (device.read(next(iter(queue))["epoch"]) == 0).all()


def test_steps_of_the_device_have_a_precision_and_a_grad_mode_of_their_own():
    seen = []

    def step(batch):
        seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        return batch

    with torch.autocast("cpu", dtype=torch.bfloat16):
        list(DeviceQueue(Counting(1), "cpu", [step]))
    assert seen == [(False, False)]
