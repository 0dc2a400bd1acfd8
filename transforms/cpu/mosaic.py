"""Combine four images around a point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from penstock.core.registry import register
from penstock.core.sample import Sample
from penstock.transforms.amounts import Positive, Share, check_ordered
from penstock.transforms.cpu.targets import (
    BoxSettings,
    boxes_inside,
    check_together,
    outside,
    rows_of,
)
from penstock.transforms.cpu.window import Window

_Side = Annotated[int, Ge(2)]


@register("transform", "mosaic")
@dataclass(kw_only=True, eq=False)
class Mosaic:
    """Combine the sample and three others around a random point of a new image.

    Source: Bochkovskiy et al., "YOLOv4: Optimal speed and accuracy of object detection", 2020,
    section 3.3. Each image keeps its aspect ratio and touches the point with a corner.

    Boxes, ``mask`` and ``keypoints``, [4 K, 3], of all four follow; other fields stay the sample's
    own. With probability 1 - `p` an image keeps its size, so put a resize or crop after this step.

    Args:
        height: Height of the new image, in pixels.
        width: Width of the new image, in pixels.
        p: Probability of a mosaic.
        center: Range of the point, as a share of height and of width.
        scale: Range of image sizes; at 1 an image just fits into a quarter of the canvas.
        fill: Value of pixels without an image.
        mask_fill: Value of mask pixels without an image.
        box_limits: Limits below which boxes are dropped.
    """

    height: _Side
    width: _Side
    p: Share = 1.0
    center: tuple[Share, Share] = (0.25, 0.75)
    scale: tuple[Positive, Positive] = (1.0, 2.0)
    fill: Annotated[int, Ge(0), Le(255)] = 114
    mask_fill: Annotated[int, Ge(0)] = 0
    box_limits: BoxSettings = field(default_factory=BoxSettings)

    def __post_init__(self) -> None:
        check_ordered("mosaic", center=self.center, scale=self.scale)

    def partners(self, rng: np.random.Generator) -> int:
        """Return 3 to make a mosaic, or 0."""
        return 3 if rng.random() < self.p else 0

    def __call__(
        self, sample: Sample, rng: np.random.Generator, partners: Sequence[Sample]
    ) -> Sample:
        """Combine a sample with three others of the same fields and channels, if given."""
        if not partners:
            return sample
        samples = [sample, *partners]
        fields = ("image", "mask", "boxes", "keypoints")
        check_together("mosaic", samples, [name for name in fields if name in sample])
        height, width = self.height, self.width
        across, down = rng.uniform(*self.center, 2)
        x, y = round(across * width), round(down * height)
        scales = rng.uniform(*self.scale, len(samples))
        new, image = dict(sample), sample["image"]
        new["image"] = np.full((height, width, image.shape[2]), self.fill, image.dtype)
        if "mask" in sample:
            new["mask"] = np.full((height, width), self.mask_fill, sample["mask"].dtype)
        boxes, points = [], []
        for number, (one, scale) in enumerate(zip(samples, scales.tolist(), strict=True)):
            rows, columns = one["image"].shape[:2]
            fit = min(height / 2 / rows, width / 2 / columns) * scale
            size = max(1, round(rows * fit)), max(1, round(columns * fit))
            # Upper left, upper right, lower left, lower right of the point.
            left = x - size[1] if number % 2 == 0 else x
            top = y - size[0] if number < 2 else y
            start, end = (max(left, 0), max(top, 0)), (left + size[1], top + size[0])
            end = min(end[0], width), min(end[1], height)
            window = Window((0, 0, columns, rows), size, interpolation="area")
            place = slice(start[1], end[1]), slice(start[0], end[0])
            part = slice(start[1] - top, end[1] - top), slice(start[0] - left, end[0] - left)
            new["image"][place] = window.pixels(one["image"])[part]
            if "mask" in sample:
                new["mask"][place] = window.masks(one["mask"])[part]
            if "boxes" in sample:
                there = boxes_inside(one["boxes"], (rows, columns))
                boxes.append(window.boxes(there) + np.tile([left, top], 2))
            if "keypoints" in sample:
                moved = np.array(one["keypoints"], np.float32).reshape(-1, 3)
                moved[outside(moved, (rows, columns)), 2] = 0
                moved[:, :2] = window.points(moved[:, :2]) + np.array((left, top))
                points.append(moved)
        if boxes:
            cut, kept = self.box_limits.cut(np.concatenate(boxes), (height, width))
            joined = rows_of(samples, [slice(None)] * len(samples))
            new |= {name: values[kept] for name, values in joined.items()}
            new["boxes"] = cut[kept]
        if points:
            new["keypoints"] = np.concatenate(points)
            new["keypoints"][outside(new["keypoints"], (height, width)), 2] = 0
        return new
