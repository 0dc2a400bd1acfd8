"""Images that already lie in the memory of their batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import as_strided

from penstock.pipeline.collates.stack import stack
from tests.contracts.collate import InTensors
from tests.contracts.equality import assert_same
from tests.pipeline.collates.test_collates import samples

stack = InTensors(stack)


def in_rows(count: int = 5) -> tuple[list, np.ndarray, dict]:
    """Samples whose images are in the rows, the rows, and the batch that copying gives."""
    made = samples(count)
    expected = stack(samples(count))
    rows = np.empty((count, 8, 6, 3), np.uint8)
    for sample, row in zip(made, rows, strict=True):
        row[...] = sample["image"]
        sample["image"] = row
    return made, rows, expected


def test_rows_become_the_tensor_without_a_copy():
    made, rows, expected = in_rows()
    batch = stack.into(made, rows=rows)
    assert_same(batch, expected)
    assert list(batch) == list(expected)
    assert batch["image"].data_ptr() == rows.ctypes.data
    del made, rows
    assert_same(batch, expected)


def test_rows_may_be_views_made_anew_and_lie_in_another_memory():
    made, _, expected = in_rows()
    memory = bytearray(8 * 6 * 3 * 5 + 7)
    rows = np.frombuffer(memory, np.uint8, 8 * 6 * 3 * 5).reshape(5, 8, 6, 3)
    rows[...] = [sample["image"] for sample in made]
    for i, sample in enumerate(made):
        sample["image"] = rows[i : i + 1].reshape(8, 6, 3)
    batch = stack.into(made, rows=rows)
    assert_same(batch, expected)
    assert batch["image"].data_ptr() == rows.ctypes.data


def test_an_image_from_elsewhere_is_copied_into_its_row():
    made, rows, expected = in_rows()
    made[2]["image"] = samples()[2]["image"][:, ::-1]
    made[4]["image"] = made[4]["image"].copy()
    rows[2] = rows[4] = 0
    expected["image"][2] = expected["image"][2].flip(1)
    batch = stack.into(made, rows=rows)
    assert_same(batch, expected)
    assert batch["image"].data_ptr() == rows.ctypes.data


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made.pop(1),
        lambda made: made.reverse(),
        lambda made: made[0].update(image=made[1]["image"]),
        lambda made: made[3].update(image=made[3]["image"][::-1]),
        lambda made: made[3].update(image=as_strided(made[3]["image"], strides=(0, 3, 1))),
    ],
    ids=["skipped", "other order", "twice", "turned view", "repeated view"],
)
def test_images_in_other_rows_than_their_own_are_copied(change):
    made, rows, _ = in_rows()
    change(made)
    expected = stack(made)
    before = rows.copy()
    batch = stack.into(made, rows=rows)
    assert_same(batch, expected)
    assert np.array_equal(rows, before)
    rows[...] = 0
    assert_same(batch, expected)


def test_other_shapes_and_types_are_collated_as_ever():
    made, rows, _ = in_rows()
    made[0]["image"] = np.zeros((3, 3, 3), np.uint8)
    with pytest.raises(ValueError, match="'image' is") as raised:
        stack.into(made, rows=rows)
    with pytest.raises(ValueError, match="'image' is") as as_ever:
        stack(made)
    assert str(raised.value) == str(as_ever.value)
    for sample in made:
        sample["image"] = torch.zeros(4, 4)
    assert stack.into(made, rows=rows)["image"].shape == (5, 4, 4)
    for sample in made:
        sample["image"] = np.zeros((8, 6, 3), np.float32)
    assert stack.into(made, rows=rows)["image"].dtype == torch.float32


def test_neighbours_in_the_memory_of_a_data_set_are_copied():
    data = np.random.default_rng(0).integers(0, 256, (5, 8, 6, 3), np.uint8)
    made = samples()
    for i, sample in enumerate(made):
        sample["image"] = data[i]
    rows = np.empty_like(data)
    for batch in (stack(made), stack.into(made, rows=rows)):
        batch["image"] += 1
        assert not np.shares_memory(batch["image"].numpy(), data)
