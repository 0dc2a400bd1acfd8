"""Images written to the memory of their batch: the same batches."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.pipeline.collates.fields import stack
from tests.contracts.equality import assert_same
from tests.datasets.test_map_dataset import dataset
from tests.pipeline.loader.test_compute import computer, task


def copying(samples):
    """The collate as it is without rows."""
    return stack(samples)


@pytest.mark.parametrize("on_error", ["replace", "skip"])
@pytest.mark.parametrize("quarantined", [(), (3,), (0, 1, 3, 4, 6)])
def test_the_images_lie_in_the_memory_that_was_given(on_error, quarantined):
    asked = task(0, 1, 2, 3, 4, 5, 6, quarantined=quarantined)
    compute, plain = computer(dataset(), stack, on_error), computer(dataset(), copying, on_error)
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
