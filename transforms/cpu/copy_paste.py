"""Paste objects of another image into this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.core.sample import Sample
from penstock.transforms.amounts import Share
from penstock.transforms.cpu.geometry import between
from penstock.transforms.cpu.targets import (
    BoxSettings,
    boxes_inside,
    check_together,
    outside,
    rows_of,
)


@register("transform", "copy_paste")
@dataclass(kw_only=True, eq=False)
class CopyPaste:
    """Paste random objects of another sample at random places.

    Source: Ghiasi et al., "Simple copy-paste is a strong data augmentation method for instance
    segmentation", CVPR 2021, without its rescaling, which is a separate step. An object is the
    part of its box that ``mask`` labels with its class. Without such pixels it is the whole box.

    A partly hidden object gets the box of its visible pixels. Objects below the limits of
    ``augment.boxes`` are dropped. Covered ``keypoints`` get visibility 1; pasted ones do not come.

    Args:
        p: Probability of pasting.
        share: Probability that each object of the other sample is pasted.
        max_objects: Maximum number of pasted objects.
        mask_offset: Mask value of an object minus its ``box_labels`` value: 1 if 0 is background,
            0 if masks and boxes number classes alike.
        box_limits: Limits below which boxes are dropped.
    """

    p: Share = 0.5
    share: Share = 0.5
    max_objects: Annotated[int, Ge(1)] = 20
    mask_offset: int = 1
    box_limits: BoxSettings = field(default_factory=BoxSettings)

    def partners(self, rng: np.random.Generator) -> int:
        """Return 1 to paste, or 0."""
        return int(rng.random() < self.p)

    def __call__(
        self, sample: Sample, rng: np.random.Generator, partners: Sequence[Sample]
    ) -> Sample:
        """Paste objects of a partner with the same fields and channels, if there is one."""
        if not partners:
            return sample
        (other,) = partners
        painted = ["image", *(["mask"] if "mask" in sample else [])]
        check_together("copy_paste", [sample, other], [*painted, "boxes", "box_labels"])
        shape = sample["image"].shape[:2]
        chosen = np.flatnonzero(rng.random(len(other["boxes"])) < self.share)[: self.max_objects]
        objects = [self._object(sample, row, shape) for row in range(len(sample["boxes"]))]
        own = len(objects)
        rows: list[list[int]] = [[*range(own)], []]
        new = {**sample, **{name: sample[name].copy() for name in painted}}
        # Number of the topmost pasted object at each pixel; 0 if none.
        cover = np.zeros(shape, np.int64)
        for row, place in zip(chosen.tolist(), rng.random((len(chosen), 2)).tolist(), strict=True):
            pasted = self._object(other, row, shape, place)
            if not pasted.size:
                continue
            objects.append(pasted)
            rows[1].append(row)
            there = tuple(pasted.pixels)
            for name in painted:
                new[name][there] = other[name][tuple(pasted.pixels - pasted.move[:, None])]
            cover[there] = len(rows[1])
        if not rows[1]:
            return sample
        seen = [each.seen(cover, max(n - own + 1, 0)) for n, each in enumerate(objects)]
        boxes = np.array([box for box, _ in seen], np.float32).reshape(-1, 4)
        boxes = boxes.clip(0, [*shape[::-1]] * 2)
        sizes = np.array([each.size for each in objects])
        least = np.maximum(self.box_limits.min_visibility * sizes, 1)
        kept = self.box_limits.kept(boxes) & (np.array([count for _, count in seen]) >= least)
        new |= {name: values[kept] for name, values in rows_of([sample, other], rows).items()}
        if "keypoints" in sample:
            new["keypoints"] = _hidden_under(cover > 0, sample["keypoints"])
        return {**new, "boxes": boxes[kept]}

    def _object(
        self, sample: Sample, row: int, shape: Any, place: Sequence[float] | None = None
    ) -> _Object:
        """Return an object of a sample, moved to a place in an image of `shape`."""
        [box] = boxes_inside(sample["boxes"][row], sample["image"].shape)
        start, stop = np.floor(box[1::-1]).astype(int), np.ceil(box[:1:-1]).astype(int)
        lengths = np.maximum(stop - start, 0)
        pixels = np.ones(lengths, np.bool_)
        if "mask" in sample:
            value = int(sample["box_labels"][row]) + self.mask_offset
            (top, left), (bottom, right) = start, start + lengths
            own = sample["mask"][top:bottom, left:right] == value
            pixels = own if own.any() else pixels
        move = np.zeros(2, int)
        if place is not None:  # a small object stays inside the image; a larger one covers it
            rooms = (np.array(shape) - lengths).tolist()
            move = np.array([between(*each) for each in zip(place, rooms, strict=True)]) - start
        found = np.array(pixels.nonzero()) + (start + move)[:, None]
        there = found[:, ~outside(found[::-1].T, shape)]
        return _Object(box + np.tile(move[::-1], 2), there, found.shape[1], move)


@dataclass(slots=True)
class _Object:
    """An object in an image: its box, and the rows and columns of its pixels there, [2, n].

    `size` counts its pixels, with those outside; `move` is the distance from its own place.
    """

    box: NDArray[np.float64]
    pixels: NDArray[np.int64]
    size: int
    move: NDArray[np.int64]

    def seen(self, cover: NDArray[np.int64], number: int) -> tuple[NDArray[np.float64], int]:
        """Return the box around the visible pixels, where `cover` is `number`, and their count."""
        seen = self.pixels[:, cover[tuple(self.pixels)] == number]
        count = seen.shape[1]
        if count in (0, self.size):
            return self.box, count
        first, last = seen.min(1)[::-1], seen.max(1)[::-1] + 1
        box = np.concatenate([np.maximum(self.box[:2], first), np.minimum(self.box[2:], last)])
        return box, count


def _hidden_under(covered: NDArray[np.bool_], keypoints: Any) -> NDArray[np.float32]:
    """Lower the visibility of covered keypoints from 2 to 1."""
    points = np.array(keypoints, np.float32)
    rows = np.flatnonzero(~outside(points, covered.shape))
    columns, lines = np.floor(points[rows, :2] + 0.5).astype(np.int64).T
    height, width = covered.shape
    hidden = rows[covered[lines.clip(max=height - 1), columns.clip(max=width - 1)]]
    points[hidden, 2] = np.minimum(points[hidden, 2], 1)
    return points
