"""Masks and boxes follow images, measured on scenes whose pixels say where they come from."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest

from penstock.core.rng import KeyedRng
from penstock.transforms.cpu.stack import Stack
from tests.building import build_step
from tests.transforms.cpu.numbered_scenes import bounds, scene

Sample = dict[str, Any]


def alb(name: str, **options: Any) -> Sample:
    return {"_target_": f"albumentations.{name}", **options, "p": 1.0}


def own(name: str, **options: Any) -> Sample:
    return {"_target_": f"transform/{name}", **options}


SIZE = {"height": 60, "width": 77}
PAD = alb("PadIfNeeded", min_height=120, min_width=130)
STACKS = {
    "own crops": [PAD, own("random_crop", size=[90, 80]), own("horizontal_flip"),
                  own("center_crop", size=[60, 70])],
    "own resize": [own("horizontal_flip"), own("resize", short_side=50)],
    "own long": [own("resize", long_side=120, interpolation="linear"), alb("D4")],
    "own resized crop": [own("random_resized_crop", size=[60, 77], scale=[0.3, 1]),
                         own("horizontal_flip", p=1.0)],
    "own safe crop": [own("box_safe_crop", size=[60, 77]), alb("VerticalFlip")],
    "library crops": [alb("RandomCrop", **SIZE, pad_if_needed=True), alb("Pad", padding=9),
                      alb("Transpose")],
    "library resize": [alb("RandomResizedCrop", size=[60, 77], scale=[0.3, 1.0])],
    "rotated": [own("horizontal_flip"), alb("Rotate", limit=[-40, 40])],
    "affine": [alb("Affine", rotate=[-30, 30], scale=[0.7, 1.3], translate_percent=[-0.1, 0.1])],
}  # fmt: skip
TURNING = ("rotated", "affine")


def traced_scene(number: int) -> Sample:
    """A demo image that says where it comes from.

    ``image`` holds at each pixel its own column, its own row, and 255. In ``mask``, bit i is set
    where shape i is, and bit 3 + i in all of its box.
    """
    drawn = scene(number)
    shapes = drawn["mask"] % 100
    rows, columns = np.mgrid[: shapes.shape[0], : shapes.shape[1]]
    bits = np.zeros(shapes.shape, np.uint8)
    for row, (left, top, right, bottom) in enumerate(drawn["boxes"].astype(int)):
        bits[shapes == row + 1] |= 1 << row
        bits[top:bottom, left:right] |= 8 << row
    image = np.stack([columns, rows, np.full_like(rows, 255)], 2).astype(np.uint8)
    labels = np.arange(len(drawn["boxes"]))
    return {"image": image, "mask": bits, "boxes": drawn["boxes"], "box_labels": labels}


def check_boxes(given: Sample, result: Sample, *, turns: bool) -> int:
    """Boxes are around the moved pixels of the old ones; returns how many there are."""
    mask, labels = result["mask"], result["box_labels"].tolist()
    boxes = dict(zip(labels, result["boxes"], strict=True))
    for row in range(len(given["boxes"])):
        shape, filled = (mask & (bit << row) > 0 for bit in (1, 8))
        if row not in boxes:
            assert filled.sum() <= 4, f"box {row} is lost"
        elif turns and shape.any():
            x0, y0, x1, y1 = bounds(shape)
            left, top, right, bottom = boxes[row].tolist()
            assert max(left - x0, top - y0, x1 - right, y1 - bottom) <= 1, row
        elif not turns and filled.any():
            assert np.abs(np.array(bounds(filled)) - boxes[row]).max() <= 1, row
    return len(boxes)


def check_mask(given: Sample, result: Sample) -> int:
    """The mask says of a pixel what it said where the image has it from; how many were seen."""
    square = np.ones((5, 5), np.uint8)
    steady = cv2.erode(given["mask"], square) == cv2.dilate(given["mask"], square)
    column, row, known = np.moveaxis(result["image"].astype(int), 2, 0)
    assert result["mask"].shape == column.shape
    seen = known == 255
    seen &= steady[row.clip(0, steady.shape[0] - 1), column.clip(0, steady.shape[1] - 1)]
    assert (result["mask"][seen] == given["mask"][row[seen], column[seen]]).all()
    return int(seen.sum())


@pytest.mark.parametrize("name", STACKS)
def test_targets_stay_in_step(name):
    boxes = pixels = 0
    stack = Stack({str(i): node for i, node in enumerate(STACKS[name])}, build_step=build_step)
    for number in range(12):
        given = traced_scene(number)
        result = stack(given, KeyedRng().at(1, 0, number))
        boxes += check_boxes(given, result, turns=name in TURNING)
        pixels += check_mask(given, result)
    assert boxes > 6 and pixels > 6000, "there was much to see"
