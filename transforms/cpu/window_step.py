"""Run steps that crop, resize and mirror as one window, drawn before the image is decoded."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.sample import DrawnImage, Sample
from penstock.transforms.cpu.targets import Targets, cut_boxes, image_of, outside
from penstock.transforms.cpu.window import Image, Size, Window

Node = Mapping[str, Any]
Side = Annotated[int, Ge(1)]
Sides = Side | tuple[Side, Side]


class WindowStep(ABC):
    """A step that takes a window of the image, known from the image's size alone.

    Mask, boxes with their ``box_*`` fields, and keypoints follow the image. Consecutive window
    steps of a stack are one window where possible: a JPEG is then decoded only inside of it.

    Attributes:
        crops: Whether the window may be a part of the image.
        needs_boxes: Whether the window depends on the boxes.
    """

    crops: ClassVar[bool] = False
    needs_boxes: ClassVar[bool] = False

    @abstractmethod
    def window(self, size: Size, rng: np.random.Generator, boxes: Any) -> Window:
        """Return the window of an image.

        Args:
            size: Height and width of the image.
            rng: Source of every draw.
            boxes: xyxy [N, 4] in pixels, cut at the image's edges; None without boxes, and for
                steps that do not need them.
        """

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the window of a sample."""
        name = type(self).__name__
        stage = WindowStage({name: {"_target_": name}}, lambda node: self, Targets())
        return stage(dict(sample), rng)


def sides_of(size: Sides) -> Size:
    """Return height and width of a size, [height, width] or one number for both."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


class WindowStage:
    """Run consecutive window steps with as few windows as possible.

    Args:
        steps: Config nodes by step name.
        build_step: Builds the step of a node.
        targets: Box limits, applied to the result of each window, and keypoint swaps.
    """

    def __init__(
        self, steps: Mapping[str, Node], build_step: Callable[..., Any], targets: Targets
    ) -> None:
        self._steps: list[tuple[str, WindowStep]] = [
            (f"in augmentation step {name!r} ({node['_target_']})", build_step(node))
            for name, node in steps.items()
        ]
        self._targets = targets
        self.crops = any(step.crops for _, step in self._steps)

    def __call__(
        self, sample: Sample, rng: np.random.Generator, into: NDArray[np.uint8] | None = None
    ) -> Sample:
        """Apply the steps in place; write the image to `into`, uint8 [H, W, C], if it fits."""
        sample = self.draw(sample, rng)
        sample["image"] = sample["image"].fill(into)
        return sample

    def draw(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Make all draws and move mask, boxes and keypoints; leave a `DrawnImage`."""
        image = image_of(sample)
        if len(image.shape) != 3:
            raise ValueError(f"image of shape {list(image.shape)}, expected [H, W, C]")
        windows: list[Window] = []
        for place, step in self._steps:
            size = windows[-1].shape if windows else image.shape[:2]
            boxes = None
            if step.needs_boxes and "boxes" in sample:
                boxes = _inside(sample["boxes"], image.shape)
                for window in windows:
                    boxes = _inside(window.boxes(boxes), window.shape)
            try:
                window = step.window(size, rng, boxes)
            except Exception as error:
                error.add_note(place)
                raise
            fused = windows[-1].then(window) if windows else None
            if fused is None:
                windows.append(window)
            else:
                windows[-1] = fused
        size = image.shape[:2]
        for window in windows:
            self._move(sample, window, size)
            size = window.shape
        sample["image"] = DrawnImage(image, functools.partial(_filled, image, windows))
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
            fill = window.fill[1] if window.fill is not None and name == "mask" else 0
            sample[name] = window.masks(masks, fill)
        if "boxes" in sample:
            moved = window.boxes(_inside(sample["boxes"], size))
            cut, kept = cut_boxes(moved, window.shape, self._targets.boxes)
            self._targets.put_boxes(sample, cut[kept], np.flatnonzero(kept), window.shape)
        if "keypoints" in sample:
            before = sample["keypoints"][:, :2]
            points = window.points(before).astype(np.float32)
            lost = outside(before, size) | outside(points, window.shape)
            self._targets.put_points(sample, points, lost, mirrored=window.mirrored)


def _inside(boxes: NDArray[np.floating[Any]], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Cut boxes, [N, 4], at the edges of an image of `shape`."""
    height, width = shape[:2]
    return np.asarray(boxes, np.float64).reshape(-1, 4).clip(0, [width, height, width, height])


def _filled(
    image: Image, windows: Sequence[Window], into: NDArray[np.uint8] | None
) -> NDArray[Any]:
    """Return the pixels of windows that follow one another."""
    for window in windows[:-1]:
        image = window.pixels(image)
    return windows[-1].pixels(image, into)
