"""Combine four images around a point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le

from penstock.core.registry import register
from penstock.core.sample import Sample
from penstock.transforms.cpu.targets import (
    BoxSettings,
    check_together,
    cut_boxes,
    outside,
    rows_of,
)
from penstock.transforms.cpu.window import Size, Window


@register("transform", "mosaic")
class Mosaic:
    """Combine the sample and three others around a random point of a new image.

    Source: Bochkovskiy, Wang and Liao, "YOLOv4: Optimal speed and accuracy of object detection",
    2020, arXiv:2004.10934, section 3.3. Each image keeps its aspect ratio and touches the point
    with a corner. The canvas cuts images at its edges.

    Boxes are cut with their image. Boxes below the limits of ``augment.boxes`` are dropped, with
    their rows in every ``box_*`` field. ``mask`` is combined like the image. ``keypoints`` of the
    four images are concatenated, [4 K, 3]; outside the canvas they get visibility 0. Other fields,
    such as ``label``, stay the sample's own. With probability 1 - `p` an image keeps its size, so
    put a resize or crop after this step.

    Args:
        height: Height of the new image, in pixels.
        width: Width of the new image, in pixels.
        p: Probability of a mosaic.
        center: Range of the point, as a share of height and of width.
        scale: Range of image sizes; at 1 an image just fits into a quarter of the canvas.
        fill: Value of pixels without an image.
        mask_fill: Value of mask pixels without an image.
        box_limits: Limits below which boxes are dropped.

    Raises:
        ValueError: A range is empty.
    """

    def __init__(
        self,
        *,
        height: Annotated[int, Ge(2)],
        width: Annotated[int, Ge(2)],
        p: Annotated[float, Ge(0), Le(1)] = 1.0,
        center: tuple[Annotated[float, Ge(0), Le(1)], Annotated[float, Ge(0), Le(1)]] = (
            0.25,
            0.75,
        ),
        scale: tuple[Annotated[float, Gt(0)], Annotated[float, Gt(0)]] = (1.0, 2.0),
        fill: Annotated[int, Ge(0), Le(255)] = 114,
        mask_fill: Annotated[int, Ge(0)] = 0,
        box_limits: BoxSettings | None = None,
    ) -> None:
        for name, (low, high) in {"center": center, "scale": scale}.items():
            if low > high:
                raise ValueError(f"mosaic: {name} is [{low}, {high}]; give the lower one first")
        self._shape = (height, width)
        self._p = p
        self._center = center
        self._scale = scale
        self._fill = fill
        self._mask_fill = mask_fill
        self._limits = box_limits

    def partners(self, rng: np.random.Generator) -> int:
        """Return 3 to make a mosaic, or 0."""
        return 3 if rng.random() < self._p else 0

    def __call__(
        self, sample: Sample, rng: np.random.Generator, partners: Sequence[Sample]
    ) -> Sample:
        """Combine a sample with three partners; without partners return it.

        Raises:
            ValueError: A partner lacks a field, or the images differ in channels.
        """
        if not partners:
            return sample
        samples = [sample, *partners]
        fields = ("image", "mask", "boxes", "keypoints")
        check_together("mosaic", samples, [name for name in fields if name in sample])
        height, width = self._shape
        across, down = rng.uniform(*self._center, 2)
        x, y = round(across * width), round(down * height)
        scales = rng.uniform(*self._scale, len(samples))
        new = dict(sample)
        new["image"] = np.full(
            (height, width, sample["image"].shape[2]), self._fill, sample["image"].dtype
        )
        if "mask" in sample:
            new["mask"] = np.full((height, width), self._mask_fill, sample["mask"].dtype)
        boxes, points = [], []
        for number, (one, scale) in enumerate(zip(samples, scales.tolist(), strict=True)):
            size = self._size_of(one["image"].shape, scale)
            # Upper left, upper right, lower left, lower right of the point.
            left = x - size[1] if number % 2 == 0 else x
            top = y - size[0] if number < 2 else y
            window, rows, columns = self._window(one["image"].shape, size, left, top)
            if 0 not in window.shape:
                new["image"][rows, columns] = window.pixels(one["image"])
                if "mask" in sample:
                    new["mask"][rows, columns] = window.masks(one["mask"])
            shift = np.array([columns.start, rows.start])
            if "boxes" in sample:
                there = np.asarray(one["boxes"], np.float64).reshape(-1, 4)
                boxes.append(window.boxes(there) + np.tile(shift, 2))
            if "keypoints" in sample:
                moved = np.array(one["keypoints"], np.float32).reshape(-1, 3)
                moved[:, :2] = window.points(moved[:, :2]) + shift
                points.append(moved)
        if boxes:
            new["boxes"], kept = cut_boxes(np.concatenate(boxes), self._shape, self._limits)
            new["boxes"] = new["boxes"][kept]
            new |= {name: values[kept] for name, values in rows_of(samples).items()}
        if points:
            moved = np.concatenate(points)
            moved[outside(moved, self._shape), 2] = 0
            new["keypoints"] = moved
        return new

    def _size_of(self, shape: tuple[int, ...], scale: float) -> Size:
        """Return height and width of an image on the canvas."""
        fit = min(self._shape[0] / 2 / shape[0], self._shape[1] / 2 / shape[1]) * scale
        return max(1, round(shape[0] * fit)), max(1, round(shape[1] * fit))

    def _window(
        self, shape: tuple[int, ...], size: Size, left: int, top: int
    ) -> tuple[Window, slice, slice]:
        """Return the window of an image that is on the canvas, and its rows and columns there."""
        x, y = max(left, 0), max(top, 0)
        end_x, end_y = min(left + size[1], self._shape[1]), min(top + size[0], self._shape[0])
        part = (x - left, y - top, end_x - left, end_y - top)
        window = Window((0, 0, shape[1], shape[0]), size, part, interpolation="area")
        return window, slice(y, end_y), slice(x, end_x)
