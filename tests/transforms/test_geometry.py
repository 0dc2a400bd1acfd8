"""Images, masks, boxes and keypoints stay in step, measured on what is known of every pixel.

What holds of which steps, for boxes of objects that a step cuts too:

- Steps along the axes (crops, borders, flips, turns by 90 degrees, resizes): a transformed box
  is the box around the transformed pixels of the old one, within a pixel.
- Steps that turn, shear or bend: a transformed box holds all of the object, within a pixel; it
  is as large as the old box turned, so it is mostly larger than it must be.
- With several steps that take new samples, each adds up to one of its pixels.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
import torch

from penstock.core.rng import KeyedRng
from penstock.core.sample import Record
from penstock.transforms.cpu.stack import Stack, build_stack
from penstock.transforms.cpu.targets import KeypointSettings
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.device.random_flip import RandomFlip
from tests.building import build_step
from tests.transforms.cpu.numbered_scenes import bounds
from tests.transforms.random_stacks import (
    EXACT,
    RESIZING,
    TURNING,
    Kind,
    draw_stack,
    draw_step,
    traced_scene,
)

KINDS = ("aligned", "turned", "mixed")
Sample = dict[str, Any]


def drawn(kind: Kind, number: int) -> tuple[dict[str, Any], Sample]:
    """The steps and the scene of a number."""
    rng = np.random.default_rng([KINDS.index(kind), number])
    return draw_stack(rng, kind), traced_scene(int(rng.integers(60)))


def moved(stack: Stack, sample: Sample, number: int) -> Sample:
    return stack(sample, KeyedRng().at(1, 0, number))


def check_boxes(given: Sample, result: Sample, kind: Kind, slack: float) -> int:
    """Boxes are those of the pixels, and no box is lost; returns how many there are."""
    mask, boxes = result["mask"], dict(zip(result["box_labels"].tolist(), result["boxes"],
                                           strict=True))  # fmt: skip
    assert len(boxes) == len(result["boxes"])
    height, width = mask.shape
    for row in range(len(given["boxes"])):
        shape, filled = (mask & (bit << row) > 0 for bit in (1, 8))
        if row not in boxes:
            assert filled.sum() <= 4 * slack, f"box {row} is lost"
            continue
        left, top, right, bottom = boxes[row].tolist()
        assert 0 <= left < right <= width and 0 <= top < bottom <= height
        if kind == "aligned":
            if filled.any():
                assert np.abs(np.array(bounds(filled)) - boxes[row]).max() <= slack, row
            else:
                assert min(right - left, bottom - top) <= 1, f"box {row} is around nothing"
        elif shape.any():
            x0, y0, x1, y1 = bounds(shape)
            outside = max(left - x0, top - y0, x1 - right, y1 - bottom)
            assert outside <= slack, f"shape {row} is {outside} pixels out of its box"
    return len(boxes)


def check_mask(given: Sample, result: Sample, *, around: int) -> int:
    """The mask says of a pixel what it said where the image has it from; how many were seen."""
    square = np.ones((around, around), np.uint8)
    steady = cv2.erode(given["mask"], square) == cv2.dilate(given["mask"], square)
    column, row, known = np.moveaxis(result["image"].astype(int), 2, 0)
    assert result["mask"].shape == column.shape
    seen = known == 255
    seen &= steady[row.clip(0, steady.shape[0] - 1), column.clip(0, steady.shape[1] - 1)]
    assert (result["mask"][seen] == given["mask"][row[seen], column[seen]]).all()
    return int(seen.sum())


def check_points(given: Sample, result: Sample, *, slack: float, exact: bool) -> int:
    """A point that is seen lies where the image has what it was on; how many are seen.

    Where no step takes new samples, it lies on that very pixel, and so on its shape.
    """
    height, width = result["mask"].shape
    seen = 0
    for (x, y, visibility), (was_x, was_y, _) in zip(
        result["keypoints"].tolist(), given["keypoints"].tolist(), strict=True
    ):
        inside = 0 <= x < width and 0 <= y < height
        assert visibility == (2 if inside else 0) or visibility == 0
        if visibility == 0:
            continue
        seen += 1
        reach = int(np.ceil(slack))
        window = (
            slice(max(round(y) - reach, 0), round(y) + reach + 1),
            slice(max(round(x) - reach, 0), round(x) + reach + 1),
        )
        column, row, known = np.moveaxis(result["image"][window].astype(int), 2, 0)
        assert (known > 0).any(), "a point on nothing is seen"
        if (known == 255).all():
            for was, there in ((was_x, column), (was_y, row)):
                assert there.min() - 1 <= was <= there.max() + 1
        if exact:
            assert result["image"][int(y), int(x)].tolist() == [was_x, was_y, 255]
            assert result["mask"][int(y), int(x)] == given["mask"][int(was_y), int(was_x)]
    return seen


def check_alone(stack: Stack, given: Sample, result: Sample, number: int) -> None:
    """An image alone, compiled and decoded in parts where that goes, is the same image."""
    alone = {"image": given["image"], "key": given["key"]}
    assert np.array_equal(moved(stack, alone, number)["image"], result["image"])
    pending = ImageDecoder().defer(Record(0, "", {"image": given["image"]}))
    assert np.array_equal(moved(stack, pending, number)["image"], result["image"])


def check_stacks(kind: Kind, numbers: range) -> None:
    boxes = pixels = points = begun_with_a_crop = 0
    for number in numbers:
        steps, given = drawn(kind, number)
        names = [name.split()[1] for name in steps]
        stack = build_stack(steps, build_step=build_step)
        result = moved(stack, given, number)
        sampled = sum(name in RESIZING + TURNING for name in names)
        slack = 1.0 if kind != "mixed" else 1.0 + 5 * max(sampled - 1, 0)
        try:
            boxes += check_boxes(given, result, kind, slack)
            pixels += check_mask(given, result, around=5 if kind != "mixed" else 15)
            points += check_points(given, result, slack=slack, exact=not sampled)
            if not any("safe_" in name for name in names):  # drawn from the boxes
                check_alone(stack, given, result, number)
                begun_with_a_crop += stack.whole_because() is None
        except AssertionError as error:
            error.add_note(f"{kind} stack {number}, scene {given['key']}: {steps}")
            raise
    count = len(numbers)
    assert boxes > count and pixels > 1000 * count and points > count, "there was much to see"
    assert begun_with_a_crop or kind != "aligned"


@pytest.mark.parametrize("kind", KINDS)
def test_targets_stay_in_step(kind):
    check_stacks(kind, range(34))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_targets_stay_in_step_over_a_thousand_stacks(kind):
    check_stacks(kind, range(34, 368))


FLIPS = (
    "albumentations.HorizontalFlip",
    "albumentations.VerticalFlip",
    "transform/horizontal_flip",
)
SWAPS = ([[2, 4]], [[1, 3]], [[2, 4]])  # right and left; top and bottom


@pytest.mark.parametrize(("name", "swaps"), zip(FLIPS, SWAPS, strict=True))
def test_a_flip_undoes_itself_for_every_target(name, swaps):
    stack = build_stack(
        {"flip": {"_target_": name, "p": 1.0}},
        build_step=build_step,
        keypoints=KeypointSettings(swaps=swaps),
    )
    for number in range(12):
        given = {**traced_scene(number), "label": 3}
        once = moved(stack, given, number)
        assert not np.array_equal(once["image"], given["image"])
        left, right = swaps[0]
        axis = int("Vertical" in name)
        ends = once["keypoints"][[left, right], axis]
        assert (ends[0] > ends[1]) == (axis == 0), "right is right, and top is top"
        twice = moved(stack, once, number + 1)
        assert set(twice) == set(given)
        for field in ("image", "mask", "keypoints", "box_labels"):
            assert np.array_equal(twice[field], given[field]), field
        assert np.abs(twice["boxes"] - given["boxes"]).max() < 1e-4
        assert twice["label"] == 3


@pytest.mark.parametrize("inside", [True, False])
def test_a_flip_after_a_crop_undoes_itself(inside):
    """After a crop of everything, with which it is one window, and twice in one stack."""
    image = traced_scene(1)["image"]
    crop = {"_target_": "transform/center_crop", "size": list(image.shape[:2])}
    flip = {"_target_": "transform/horizontal_flip", "p": 1.0}
    once = build_stack({"crop": crop, "a": flip}, build_step=build_step)
    twice = build_stack({"crop": crop, "a": flip, "b": flip}, build_step=build_step)
    row = np.empty_like(image) if inside else None
    rng = KeyedRng().at(1, 0, 0)
    flipped = once({"image": image}, rng, into=row)["image"]
    assert (flipped is row) == inside
    assert np.array_equal(flipped, np.flip(image, 1))
    assert np.array_equal(once({"image": flipped.copy()}, rng, into=row)["image"], image)
    assert np.array_equal(twice({"image": image}, rng, into=row)["image"], image)


@pytest.mark.parametrize("layout", ["bytes", "floats", "list"])
def test_a_flip_on_the_device_undoes_itself(layout):
    scenes = [traced_scene(number) for number in range(6)]
    height, width = (min(one["mask"].shape[axis] for one in scenes) for axis in (0, 1))
    images = [torch.tensor(one["image"][:height, :width]) for one in scenes]
    masks = [torch.tensor(one["mask"][:height, :width]) for one in scenes]
    batch: dict[str, Any] = {
        "image": torch.stack(images),
        "mask": torch.stack(masks),
        "label": torch.arange(6),
        "position": torch.arange(6),
        "epoch": torch.zeros(6, dtype=torch.int64),
    }
    if layout == "floats":
        batch["image"] = batch["image"].permute(0, 3, 1, 2).float().contiguous()
    elif layout == "list":
        batch |= {"image": images, "mask": masks}
    flip = RandomFlip(p=1.0, seed=0, split="train", step="flip")
    once = flip(batch)
    twice = flip(once)
    for field in ("image", "mask"):
        for row in range(6):
            axis = 2 if layout == "floats" and field == "image" else 1
            assert torch.equal(once[field][row], batch[field][row].flip(axis))
            assert torch.equal(twice[field][row], batch[field][row])
    assert torch.equal(twice["label"], batch["label"])


@pytest.mark.parametrize("number", range(12))
def test_boxes_of_one_pixel_go_with_their_pixel(number):
    rng = np.random.default_rng(number)
    names = rng.choice(EXACT, 3).tolist()
    steps = {f"{i} {name}": draw_step(name, rng) for i, name in enumerate(names)}
    places = rng.permutation(70 * 90)[:60]
    rows, columns = places // 90, places % 90
    mask = np.zeros((70, 90), np.uint8)
    mask[rows, columns] = 1 + np.arange(60)
    given = {
        "image": np.zeros((70, 90, 3), np.uint8),
        "mask": mask,
        "boxes": np.stack([columns, rows, columns + 1, rows + 1], 1).astype(np.float32),
        "box_labels": np.arange(60),
    }
    result = moved(build_stack(steps, build_step=build_step), given, number)
    left, top = result["boxes"][:, :2].round().astype(int).T
    assert np.abs(result["boxes"] - np.stack([left, top, left + 1, top + 1], 1)).max() < 1e-4
    assert (result["mask"][top, left] == result["box_labels"] + 1).all()
    assert (
        sorted(result["box_labels"] + 1) == np.unique(result["mask"][result["mask"] > 0]).tolist()
    )
