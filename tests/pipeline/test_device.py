from __future__ import annotations

from itertools import islice

import pytest
import torch

from penstock.pipeline.device import Copy, DevicePrefetcher, describe_inputs, map_tensors
from penstock.pipeline.loader.stats import LoaderStats
from penstock.transforms.device.normalize import Normalize
from tests.pipeline.loader.staged import FakeMemory


def test_what_a_model_gets_is_told_in_words():
    [batch] = islice(iter(Counting(1)), 1)
    assert describe_inputs(batch) == "image uint8 [B, 256, 256, 3], channels last, 0 to 0"
    changed = Normalize()({**batch, "text": torch.arange(6).reshape(2, 3)})
    assert describe_inputs(changed) == (
        "image float32 [B, 3, 256, 256], channels first, -2.12 to -1.8; text int64 [B, 3], 0 to 5"
    )
    assert describe_inputs({"image": [*changed["image"]]}).startswith("image float32 [B, 3, 256")
    assert Normalize()({"text": batch["label"]}) == {"text": batch["label"]}


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


@pytest.mark.gpu
def test_on_cuda_the_copies_are_timed_and_let_go_of():
    prefetcher = DevicePrefetcher(Counting(7, pin=True), "cuda")
    for batch in prefetcher:
        assert len(prefetcher._under_way) <= 2
        assert int(batch["image"].sum()) >= 0
    assert 0 < prefetcher.copy_s < 10 and not prefetcher._under_way


class FakeMark:
    def __init__(self, passed: bool) -> None:
        self.passed, self.waited_for = passed, False

    def query(self):
        return self.passed

    def synchronize(self):
        self.waited_for = self.passed = True

    def elapsed_time(self, later):
        assert self.passed and later.passed, "that would wait, or raise"
        return 250.0


class FakeStream:
    """Copies late: when a batch is delivered, as a busy bus would.

    Host memory is spoiled as soon as nobody holds it, if the prefetcher lets go of it too early.
    """

    def __init__(self, *, passed: bool) -> None:
        self.passed = passed
        self.log: list[str] = []
        self.copies: list[Copy] = []

    def copy(self, host):
        self.log.append(f"copy {int(host['label'][0])}")
        batch = map_tensors(host, torch.zeros_like)
        done = FakeMark(self.passed)
        self.copies.append(Copy({}, batch, FakeMark(True), done))
        return Copy(host, batch, FakeMark(True), done)

    def deliver(self, copy):
        for name, tensor in copy.host.items():
            if isinstance(tensor, torch.Tensor):
                copy.batch[name].copy_(tensor)
        self.log.append(f"deliver {int(copy.batch['label'][0])}")
        return copy.batch


class Spoiling(Counting):
    """Writes over its batches when nobody holds them any more, as slots do."""

    def __init__(self, batches: int) -> None:
        super().__init__(batches)
        self.memory = FakeMemory()
        self.stream: FakeStream | None = None

    def __iter__(self):
        for batch in super().__iter__():
            yield {**batch, "image": self.memory.pin(batch["image"])}
            del batch


def test_a_copy_is_issued_before_the_batch_is_yielded():
    stream = FakeStream(passed=True)
    loader = Spoiling(6)
    loader.stream = stream
    prefetcher = DevicePrefetcher(loader, "cpu", [to_float], stream=stream)
    for number, batch in enumerate(prefetcher):
        assert (batch["image"] == 2 * number).all() and batch["key"][0] == f"{number}a"
        assert prefetcher.state_dict() == {"given": number + 1}
        copied = [line for line in stream.log if line.startswith("copy")]
        assert len(copied) == min(number + 2, 6)
        stream.log.append(f"use {number}")
    assert [line for line in stream.log if "copy" not in line] == [
        line for number in range(6) for line in (f"deliver {number}", f"use {number}")
    ]
    assert prefetcher.copy_s == 6 * 0.25
    assert not prefetcher._under_way and loader.memory.lent == 0
    assert loader.memory.slabs <= 3


def test_host_memory_is_kept_until_its_copy_is_through():
    stream = FakeStream(passed=False)
    loader = Spoiling(6)
    loader.stats = LoaderStats()
    prefetcher = DevicePrefetcher(loader, "cpu", stream=stream)
    for number, batch in enumerate(prefetcher):
        assert (batch["image"] == number).all()
        under_way = [copy for copy in stream.copies if not copy.done.passed]
        assert len(under_way) == min(len(stream.copies), 2)
        assert loader.memory.lent >= len(under_way)
        waited = [copy.done.waited_for for copy in stream.copies]
        assert sum(waited) == max(0, len(waited) - 2), "only those beyond the one ahead"
    assert loader.memory.lent == 0 and prefetcher.copy_s == loader.stats.times.copy == 1.5


def test_leaving_early_waits_for_copies_under_way():
    stream = FakeStream(passed=False)
    loader = Spoiling(6)
    prefetcher = DevicePrefetcher(loader, "cpu", stream=stream)
    batches = iter(prefetcher)
    list(islice(batches, 2))
    batches.close()
    assert all(copy.done.waited_for for copy in stream.copies) and loader.closed
    assert prefetcher.state_dict() == {"given": 2}, "of what was yielded"


def copied_ahead(loader):
    return DevicePrefetcher(loader, "cpu", stream=FakeStream(passed=True))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda prefetcher: prefetcher.set_epoch(3), 0),
        (lambda prefetcher: prefetcher.load_state_dict({"given": 4}), 4),
    ],
    ids=["set_epoch", "load_state_dict"],
)
def test_a_place_that_is_set_after_leaving_early_counts(change, expected):
    prefetcher = copied_ahead(Spoiling(6))
    batches = iter(prefetcher)
    list(islice(batches, 2))
    batches.close()
    change(prefetcher)
    assert prefetcher.state_dict() == {"given": expected}


class Ending(Spoiling):
    """Stands at the beginning of the next epoch when one is through."""

    def __iter__(self):
        yield from super().__iter__()
        self.given = 0


def test_after_the_last_batch_the_state_is_the_loaders():
    prefetcher = copied_ahead(Ending(3))
    assert len(list(prefetcher)) == 3
    assert prefetcher.state_dict() == {"given": 0}


class Failing(Spoiling):
    def __iter__(self):
        for batch in super().__iter__():
            if self.given == 3:
                raise OSError("the disk is gone")
            yield batch


def test_a_batch_that_an_error_kept_back_does_not_count():
    prefetcher = copied_ahead(Failing(6))
    batches = iter(prefetcher)
    next(batches)
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    assert prefetcher.state_dict() == {"given": 1}


def test_on_the_cpu_nothing_is_copied():
    prefetcher = DevicePrefetcher(Counting(3), "cpu")
    assert len(list(prefetcher)) == 3 and prefetcher.copy_s == 0


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


def test_a_step_that_gets_files_for_pixels_says_what_decodes_them():
    files = [{"image": [b"\x89PNG", b"\x89PNG"], "valid": torch.ones(2, dtype=torch.bool)}]
    with pytest.raises(ValueError, match=r"'image' is a file's 4 bytes.*dataset/decode=image$"):
        list(DevicePrefetcher(files, "cpu", [Normalize()]))

    def failing(batch):
        raise TypeError("of another kind")

    with pytest.raises(TypeError, match="of another kind"):
        list(DevicePrefetcher(Counting(1), "cpu", [failing]))
