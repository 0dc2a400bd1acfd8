"""Batches of the device's steps, taken apart again into what can be looked at."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.core.sample import BadSample
from penstock.pipeline.collates.fields import ListCollate, PaddedCollate, stack
from penstock.pipeline.commands.preview.looks import DeviceSteps, rows_of
from penstock.transforms.device.geometry import RandomFlip
from penstock.transforms.device.normalize import Normalize, to_float
from tests.contracts.collate import InTensors, in_tensors

ListCollate = in_tensors(ListCollate)
PaddedCollate = in_tensors(PaddedCollate)
stack = InTensors(stack)


def samples(count=4, height=6):
    draw = np.random.default_rng(0)
    return [
        {
            "image": draw.integers(0, 256, (height, 8, 3), np.uint8),
            "label": row,
            "index": row,
            "key": f"k{row}",
            "position": row,
        }
        for row in range(count)
    ]


class NormalizeFloats:
    """A step of somebody else's, that takes floats."""

    def __call__(self, batch):
        mean, std = torch.tensor([0.5, 0.1, 0.2]), torch.tensor([0.1, 0.9, 0.4])
        image = batch["image"]
        images = image if isinstance(image, list) else [image]
        done = [(one - mean[:, None, None]) / std[:, None, None] for one in images]
        return {**batch, "image": done if isinstance(image, list) else done[0]}


@pytest.mark.parametrize(
    "transforms",
    [
        [],
        [to_float],
        [Normalize(mean=[0.1, 0.5, 0.9], std=[0.3, 0.1, 0.7])],
        [to_float, NormalizeFloats()],
    ],
)
@pytest.mark.parametrize("collate", [stack, ListCollate(), ListCollate(stacked=())])
def test_normalised_pixels_come_back_as_they_were(transforms, collate):
    given = samples()
    for sample, row in zip(given, DeviceSteps(collate, transforms)(given, 0), strict=True):
        assert row["image"].dtype == np.uint8
        assert (row["image"] == sample["image"]).all()
        assert row["label"] == sample["label"]


def test_steps_that_draw_are_those_of_training():
    given = samples(8)
    flip = RandomFlip(seed=3, split="train", step="flip")
    batch = {**stack(given), "epoch": torch.full((8,), 2)}
    rows = DeviceSteps(stack, [flip, Normalize()])(given, 2)
    expected = flip(batch)["image"].numpy()
    assert (np.stack([row["image"] for row in rows]) == expected).all()
    assert (expected != batch["image"].numpy()).any()


def test_a_step_on_floats_that_changes_colours_is_seen():
    def darker(batch):
        return {**batch, "image": batch["image"] * 0.5}

    rows = DeviceSteps(stack, [to_float, darker])(samples(), 0)
    for sample, row in zip(samples(), rows, strict=True):
        assert np.abs(row["image"].astype(int) - sample["image"] / 2).max() <= 0.5


def test_groups_stay_together_and_one_with_a_bad_sample_is_shown_as_it_was():
    def pairs_swapped(batch):
        assert len(batch["image"]) == 4
        order = torch.tensor([1, 0, 3, 2])
        return {**batch, "image": batch["image"][order]}

    given = samples(6)
    given[3] = BadSample(3, "k3", 3, "broken", "here")
    rows = DeviceSteps(stack, [pairs_swapped], group=2)(given, 0)
    for row, source in ((0, 1), (1, 0), (4, 5), (5, 4)):
        assert (rows[row]["image"] == given[source]["image"]).all()
        assert rows[row]["key"] == given[row]["key"]
    assert rows[2] is given[2]
    assert rows[3] is given[3]


def test_samples_that_make_no_batch_are_shown_as_they_are_and_it_is_said():
    given = [*samples(2), *samples(1, height=5)]
    steps = DeviceSteps(stack, [Normalize()])
    assert all(a is b for a, b in zip(steps(given, 0), given, strict=True))
    steps(given, 1)
    assert len(steps.notes) == 1
    assert "'image' is [6, 8, 3]" in steps.notes[0]


def test_rows_have_no_padding():
    given = [
        {"tokens": np.arange(1, n + 1), "spectrum": np.ones((n, 3), np.float32), "key": str(n)}
        for n in (3, 0, 5)
    ]
    rows = rows_of(PaddedCollate()(given), 3)
    for sample, row in zip(given, rows, strict=True):
        assert list(row) == ["tokens", "spectrum", "key"]
        assert (row["tokens"] == sample["tokens"]).all() and row["tokens"].shape == sample[
            "tokens"
        ].shape
        assert row["spectrum"].shape == sample["spectrum"].shape


def test_boxes_padded_to_a_maximum_lose_it_with_their_labels():
    batch = {
        "boxes": torch.ones(2, 4, 4),
        "boxes_mask": torch.tensor([[True, True, False, False], [False] * 4]),
        "box_labels": torch.arange(8).reshape(2, 4),
    }
    first, second = rows_of(batch, 2)
    assert first["boxes"].shape == (2, 4) and first["box_labels"].tolist() == [0, 1]
    assert second["boxes"].shape == (0, 4) and second["box_labels"].shape == (0,)
