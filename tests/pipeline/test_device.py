from __future__ import annotations

import pytest
import torch

from pipeline.device import DevicePrefetcher


class Counting:
    """Yields batches of two rows and counts those it has handed out."""

    def __init__(self, batches: int, *, pin: bool = False) -> None:
        self.batches, self.pin = batches, pin
        self.given, self.closed, self.epoch = 0, False, 0

    def __len__(self):
        return self.batches

    def __iter__(self):
        try:
            for number in range(self.given, self.batches):
                self.given = number + 1
                image = torch.full((2, 256, 256, 3), number, dtype=torch.uint8)
                yield {
                    "image": image.pin_memory() if self.pin else image,
                    "label": torch.tensor([number, -number]),
                    "valid": torch.tensor([True, number % 2 == 0]),
                    "key": [f"{number}a", f"{number}b"],
                    "boxes": [torch.ones(number, 4), torch.zeros(1, 4)],
                }
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
    prefetcher = DevicePrefetcher(loader, device, [to_float])
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


@pytest.mark.gpu
def test_on_cuda_the_state_is_that_of_the_batches_yielded():
    loader = Counting(5)
    prefetcher = DevicePrefetcher(loader, "cuda")
    batches = iter(prefetcher)
    next(batches)
    assert loader.given == 2 and prefetcher.state_dict() == {"given": 1}


def test_leaving_early_closes_the_loader_and_the_state_goes_on():
    loader = Counting(5)
    prefetcher = DevicePrefetcher(loader, "cpu")
    batches = iter(prefetcher)
    next(batches), next(batches)
    batches.close()
    assert loader.closed
    state = prefetcher.state_dict()
    again = DevicePrefetcher(Counting(5), "cpu")
    again.load_state_dict(state)
    assert [batch["label"][0].item() for batch in again] == [2, 3, 4]


def test_without_a_valid_field_all_rows_count():
    prefetcher = DevicePrefetcher([{"x": torch.zeros(3, 2)}], "cpu")
    assert [batch["num_valid"] for batch in prefetcher] == [3]
