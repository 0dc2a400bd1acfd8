"""Take a window of an image: crop, resize and mirror, and decode only as far as needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Box, PendingImage, Sample
from penstock.transforms.cpu.stage import BuildStep, Groups, Node, Stage
from penstock.transforms.cpu.targets import Targets, boxes_inside, image_of, outside

Size = tuple[int, int]
Image = NDArray[Any] | PendingImage
Interpolation = Literal["area", "linear"]

_MAX_CHANNELS = 4  # of one call of OpenCV's resize


@dataclass(frozen=True, slots=True)
class Window:
    """A box of an image, resized to height and width `size`, then mirrored.

    Interpolation by ``area`` means ``linear`` where a side grows.
    """

    box: Box
    size: Size
    mirrored: bool = False
    interpolation: Interpolation = "linear"

    @property
    def resizes(self) -> bool:
        """Whether the box changes its size."""
        return self.size != _size(self.box)

    def then(self, after: Window) -> Window | None:
        """Return one window for both, or None if pixels must be made in between."""
        mirrored = self.mirrored != after.mirrored
        if not self.resizes:
            left, top, right, bottom = after.box
            if self.mirrored:
                left, right = self.size[1] - right, self.size[1] - left
            x, y = self.box[:2]
            box = left + x, top + y, right + x, bottom + y
            return Window(box, after.size, mirrored, after.interpolation)
        is_whole = after.box == (0, 0, self.size[1], self.size[0]) and not after.resizes
        return replace(self, mirrored=mirrored) if is_whole else None

    def points(self, points: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Move points x, y, [n, 2], that name pixels by their columns and rows."""
        moved = self._moved(points)
        if self.mirrored:
            moved[:, 0] = self.size[1] - 1 - moved[:, 0]
        return moved

    def boxes(self, boxes: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Move boxes, xyxy [n, 4], without cutting them at the edges."""
        moved = self._moved(boxes.reshape(-1, 2)).reshape(-1, 4)
        if self.mirrored:
            moved[:, [0, 2]] = self.size[1] - moved[:, [2, 0]]
        return moved

    def _moved(self, points: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        height, width = _size(self.box)
        scale = np.array([self.size[1] / width, self.size[0] / height])
        moved: NDArray[np.float64] = (points - np.array(self.box[:2])) * scale
        return moved

    def masks(self, masks: NDArray[Any]) -> NDArray[Any]:
        """Return the windows of masks, [..., H, W], by nearest pixels."""
        rows, columns = (
            start + (2 * np.arange(new) + 1) * length // (2 * new)
            for start, length, new in zip(self.box[1::-1], _size(self.box), self.size, strict=True)
        )
        return masks.take(rows, -2).take(columns[::-1] if self.mirrored else columns, -1)

    def pixels(self, image: Image, into: NDArray[np.uint8] | None = None) -> NDArray[Any]:
        """Return the pixels [h, w, C] of an image [H, W, C], in `into` if shape and dtype fit."""
        import cv2

        left, top, right, bottom = self.box
        whole: Any = image
        pixels, x, y = whole.around(self.box) if isinstance(image, PendingImage) else (whole, 0, 0)
        pixels = pixels[top - y : bottom - y, left - x : right - x]
        shape = (*self.size, image.shape[2])
        if into is None or into.shape != shape or into.dtype != pixels.dtype:
            if not self.resizes and not self.mirrored:
                return np.require(pixels, requirements=("C", "W"))
            into = np.empty(shape, pixels.dtype)
        target: NDArray[Any] = into
        if self.resizes:
            self._resize(pixels, target)
            pixels = target
        if self.mirrored:
            cv2.flip(pixels, 1, dst=target)  # in place after a resize, while it is in the cache
        elif not self.resizes:
            target[...] = pixels
        return target

    def _resize(self, pixels: NDArray[Any], into: NDArray[Any]) -> None:
        import cv2

        grows = any(new > old for new, old in zip(self.size, _size(self.box), strict=True))
        is_area = self.interpolation == "area" and not grows
        method = cv2.INTER_AREA if is_area else cv2.INTER_LINEAR
        if pixels.shape[2] <= _MAX_CHANNELS:
            cv2.resize(pixels, self.size[::-1], into, interpolation=method)
            return
        for first in range(0, pixels.shape[2], _MAX_CHANNELS):
            part = slice(first, first + _MAX_CHANNELS)
            resized = cv2.resize(pixels[..., part].copy(), self.size[::-1], interpolation=method)
            into[..., part] = resized.reshape(*self.size, -1)


class WindowStep(ABC):
    """A step that takes a window of the image, known from the image's size alone.

    Mask, boxes with their ``box_*`` fields, and keypoints follow the image. Consecutive window
    steps of a stack are one window where possible: a JPEG is then decoded only inside of it.
    `crops` is None for a step whose window is the whole image in its size.
    """

    crops: ClassVar[bool | None] = None
    needs_boxes: ClassVar[bool] = False

    @abstractmethod
    def window(self, size: Size, rng: np.random.Generator, boxes: Any) -> Window:
        """Return the window of an image of a height and width.

        `boxes` are xyxy [N, 4], cut at the image's edges; None for steps that do not need them.
        """

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the window of a sample."""
        name = type(self).__name__
        stage = WindowStage({name: {"_target_": name}}, lambda node: self, Targets())
        return stage(dict(sample), rng, iter(()))


class WindowStage(Stage):
    """Run consecutive window steps with as few windows as possible; box limits apply to each."""

    def __init__(self, steps: Mapping[str, Node], build_step: BuildStep, targets: Targets) -> None:
        super().__init__(steps, build_step, targets)
        self._steps: dict[str, WindowStep] = {n: build_step(node) for n, node in steps.items()}
        crops = (step.crops for step in self._steps.values())
        self.crops = next((each for each in crops if each is not None), False)

    def __call__(self, sample: Sample, rng: np.random.Generator, groups: Groups) -> Sample:
        """Apply the steps in place."""
        image = image_of(sample)
        if len(image.shape) != 3:
            raise ValueError(f"image of shape {list(image.shape)}, expected [H, W, C]")
        windows: list[Window] = []
        for name, step in self._steps.items():
            size, boxes = tuple(image.shape[:2]), None
            if step.needs_boxes and "boxes" in sample:
                boxes = boxes_inside(sample["boxes"], size)
            for window in windows:
                size = window.size
                boxes = None if boxes is None else boxes_inside(window.boxes(boxes), size)
            with self.noted(name):
                window = step.window(size, rng, boxes)
            fused = windows[-1].then(window) if windows else None
            windows[-1:] = [fused] if fused is not None else [*windows[-1:], window]
        size = image.shape[:2]
        for window in windows:
            self._move(sample, window, size)
            size = window.size
        into = image.into if isinstance(image, PendingImage) else None
        for window in windows[:-1]:
            image = window.pixels(image)
        sample["image"] = windows[-1].pixels(image, into)
        return sample

    def _move(self, sample: Sample, window: Window, size: Size) -> None:
        """Move mask, boxes and keypoints from an image of height and width `size`."""
        for name in ("mask", "box_masks"):
            if name not in sample:
                continue
            masks = sample[name]
            if masks.shape[-2:] != size:
                raise ValueError(
                    f"{name} of {sample.get('key')!r} has the shape {list(masks.shape)}, expected "
                    f"the image's height and width, {list(size)}"
                )
            sample[name] = window.masks(masks)
        if "boxes" in sample:
            moved = window.boxes(boxes_inside(sample["boxes"], size))
            cut, kept = self.targets.boxes.cut(moved, window.size)
            self.targets.put_boxes(sample, cut[kept], np.flatnonzero(kept), window.size)
        if "keypoints" in sample:
            before = sample["keypoints"][:, :2]
            points = window.points(before).astype(np.float32)
            lost = outside(before, size) | outside(points, window.size)
            self.targets.put_points(sample, points, lost, mirrored=window.mirrored)


def _size(box: Box) -> Size:
    return box[3] - box[1], box[2] - box[0]
