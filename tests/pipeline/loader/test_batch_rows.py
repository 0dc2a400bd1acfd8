"""Batches whose images were written where they lie: the same ones, whoever computes them."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.pipeline.collates.stack import stack
from penstock.pipeline.loader.compute import BatchComputer
from penstock.pipeline.loader.contract import BatchTask
from penstock.pipeline.samplers.random import RandomSampler
from penstock.pipeline.samplers.sequential import SequentialSampler
from tests.contracts.equality import assert_same
from tests.datasets.test_map_dataset import dataset
from tests.pipeline.loader.fakes import digest, make_loader

ENGINES = {
    "inline": {"engine": "inline"},
    "torch": {"engine": "torch", "num_workers": 2},
    "threads": {"engine": "threads", "num_workers": 2},
    "processes": {"engine": "processes", "num_workers": 2},
}


def copying(samples):
    """The collate as it is without rows."""
    return stack(samples)


def loader(collate, *, on_error, drop_last, **engine):
    data = dataset()
    return make_loader(
        data, RandomSampler(len(data)), collate=collate, batch_size=3, on_error=on_error,
        drop_last=drop_last, max_error_rate=1.0, seed=5, **engine,
    )  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("on_error", "drop_last"), [("replace", "pad"), ("skip", False)])
def test_whoever_computes_and_however_long_batches_are_kept(engine, on_error, drop_last):
    ways = {"on_error": on_error, "drop_last": drop_last}
    with loader(copying, **ways, engine="inline") as plain:
        expected = [[digest(batch) for batch in plain] for _ in range(4)]
    with loader(stack, **ways, **ENGINES[engine]) as under_test:
        kept = [list(under_test) for _ in range(4)]
    assert [[digest(batch) for batch in epoch] for epoch in kept] == expected


def computer(collate=stack, on_error="replace") -> BatchComputer:
    data = dataset()
    sampler = SequentialSampler(len(data))
    return BatchComputer(data, sampler=sampler, collate=collate, seed=0, on_error=on_error)


def task(*positions: int, quarantined: tuple[int, ...] = ()) -> BatchTask:
    at = np.array(positions, np.int64)
    return BatchTask(1, 0, at, np.ones(at.size, np.bool_), at, quarantined=quarantined)


@pytest.mark.parametrize("on_error", ["replace", "skip"])
@pytest.mark.parametrize("quarantined", [(), (3,), (0, 1, 3, 4, 6)])
def test_the_images_lie_in_the_memory_that_was_given(on_error, quarantined):
    asked = task(0, 1, 2, 3, 4, 5, 6, quarantined=quarantined)
    compute, plain = computer(on_error=on_error), computer(copying, on_error)
    compute(task(0))  # after which the shape of the images is known
    memory: list[np.ndarray] = []

    def allocate(size_bytes: int) -> memoryview:
        memory.append(np.full(size_bytes + 100, 7, np.uint8))
        return memory[-1].data

    batch = compute(asked, allocate=allocate).batch
    assert_same(batch, plain(asked, allocate=allocate).batch)
    assert len(memory) == 1 and memory[0].size == 7 * 16 * 16 * 3 + 100
    inside = batch["image"].ctypes.data == memory[0].ctypes.data
    assert inside == (on_error == "replace")
    assert (memory[0][-100:] == 7).all()


def test_every_batch_has_memory_of_its_own():
    compute = computer()
    batches = [compute(task(0, 1, 3, 4)).batch for _ in range(3)]
    assert len({batch["image"].ctypes.data for batch in batches}) == 3
    for batch in batches:
        assert_same(batch, batches[0])
    batches[1]["image"][...] = 0
    assert_same(batches[2], batches[0])


def test_a_collate_that_takes_no_rows_is_asked_as_ever():
    compute = computer(copying)
    for _ in range(2):
        compute(task(0, 1), allocate=lambda size_bytes: pytest.fail("nothing to put there"))
