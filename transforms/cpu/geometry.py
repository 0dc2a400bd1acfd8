"""Crop, resize and mirror images, and decode only the crop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Gt, Le

from penstock.core.registry import register
from penstock.core.sample import Box
from penstock.transforms.amounts import Positive, Share, Side, Sides, check_ordered, sides_of
from penstock.transforms.cpu.window import Interpolation, Size, Window, WindowStep

_TRIES = 10
_Scale = Annotated[float, Gt(0), Le(1)]


@dataclass(kw_only=True, eq=False)
class _ResizedCrop(WindowStep):
    """A crop that is resized to one size.

    Args:
        size: Height and width of the result, or one number for both.
        interpolation: ``area`` averages where the image shrinks, ``linear`` is faster.
    """

    crops: ClassVar[bool] = True

    size: Sides
    interpolation: Interpolation = "linear"

    def _resized(self, box: Box) -> Window:
        return Window(box, sides_of(self.size), interpolation=self.interpolation)


@register("transform", "random_resized_crop")
@dataclass(kw_only=True, eq=False)
class RandomResizedCrop(_ResizedCrop):
    """Crop a random part of random size and shape, and resize it to `size`.

    Source: Szegedy et al., "Going deeper with convolutions", CVPR 2015, section 6. If none of 10
    tries fits, the part is the largest with an allowed ratio at the centre, as in torchvision.

    Args:
        scale: Least and largest share of the image's area.
        ratio: Least and largest width / height of the part.
    """

    scale: tuple[_Scale, _Scale] = (0.08, 1.0)
    ratio: tuple[Positive, Positive] = (0.75, 1.3333)

    def __post_init__(self) -> None:
        check_ordered("random_resized_crop", scale=self.scale, ratio=self.ratio)

    def window(self, size: Size, rng: np.random.Generator, boxes: Any) -> Window:
        """Return the first of the tries that fits; always make the same number of draws."""
        height, width = size
        (low, high), (least, most) = self.scale, map(math.log, self.ratio)
        draws = rng.random(2 * _TRIES + 2).tolist()
        for share, shape in zip(draws[:_TRIES], draws[_TRIES:-2], strict=True):
            area = height * width * (low + share * (high - low))
            ratio = math.exp(least + shape * (most - least))
            columns, rows = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < columns <= width and 0 < rows <= height:
                left, top = between(draws[-2], width - columns), between(draws[-1], height - rows)
                return self._resized((left, top, left + columns, top + rows))
        columns = min(width, max(1, round(height * self.ratio[1])))
        rows = min(height, max(1, round(width / self.ratio[0])))
        left, top = (width - columns) // 2, (height - rows) // 2
        return self._resized((left, top, left + columns, top + rows))


@register("transform", "box_safe_crop")
@dataclass(kw_only=True, eq=False)
class BoxSafeCrop(_ResizedCrop):
    """Crop a random part with all boxes in it, or the whole image if it has none, and resize it."""

    needs_boxes: ClassVar[bool] = True

    def window(self, size: Size, rng: np.random.Generator, boxes: Any) -> Window:
        """Draw each edge between the boxes and the image's edge."""
        height, width = size
        draws = rng.random(4).tolist()
        if boxes is not None:
            boxes = boxes[(boxes[:, 2:] > boxes[:, :2]).all(1)]
        if boxes is None or not len(boxes):
            return self._resized((0, 0, width, height))
        left, top = map(int, np.floor(boxes[:, :2].min(0)))
        right, bottom = map(int, np.ceil(boxes[:, 2:].max(0)))
        left, top = between(draws[0], left), between(draws[1], top)
        right += between(draws[2], width - right)
        bottom += between(draws[3], height - bottom)
        return self._resized((left, top, right, bottom))


@register("transform", "center_crop")
@dataclass(kw_only=True, eq=False)
class CenterCrop(WindowStep):
    """Crop a part of `size` at the centre.

    Args:
        size: Height and width of the part, or one number for both.
    """

    crops: ClassVar[bool] = True

    size: Sides

    def window(self, size: Size, rng: np.random.Generator, boxes: Any) -> Window:
        """Return the part; raise ValueError if the image is too small."""
        part = sides_of(self.size)
        rooms = size[0] - part[0], size[1] - part[1]
        if min(rooms) < 0:
            raise ValueError(
                f"a crop of {part[0]} x {part[1]} pixels, got an image of {size[0]} x {size[1]}; "
                f"put transform/resize or albumentations.PadIfNeeded before it, or lower its size"
            )
        top, left = self._place(rooms, rng)
        return Window((left, top, left + part[1], top + part[0]), part)

    def _place(self, rooms: Size, rng: np.random.Generator) -> Size:
        """Return top and left, given by how much the image exceeds the part."""
        return rooms[0] // 2, rooms[1] // 2


@register("transform", "random_crop")
@dataclass(kw_only=True, eq=False)
class RandomCrop(CenterCrop):
    """Crop a part of `size` at a random place."""

    def _place(self, rooms: Size, rng: np.random.Generator) -> Size:
        down, across = rng.random(2).tolist()
        return between(down, rooms[0]), between(across, rooms[1])


@register("transform", "resize")
@dataclass(kw_only=True, eq=False)
class Resize(WindowStep):
    """Resize images to one of `size`, `short_side` and `long_side`; masks by nearest pixels.

    Args:
        size: Height and width, or one number for both.
        short_side: The shorter side, in pixels.
        long_side: The longer side, in pixels.
        interpolation: ``area`` averages where the image shrinks, ``linear`` is faster.
    """

    crops: ClassVar[bool] = False

    size: Sides | None = None
    short_side: Side | None = None
    long_side: Side | None = None
    interpolation: Interpolation = "area"

    def __post_init__(self) -> None:
        if [self.size, self.short_side, self.long_side].count(None) != 2:
            raise ValueError(
                f"resize: size={self.size}, short_side={self.short_side}, "
                f"long_side={self.long_side}; give one of them and set the others to null"
            )

    def window(self, size: Size, rng: np.random.Generator, boxes: Any) -> Window:
        """Return the whole image in its new size."""
        if self.size is not None:
            new = sides_of(self.size)
        else:
            scale = (self.long_side or 0) / max(size)
            if self.short_side is not None:
                scale = self.short_side / min(size)
            new = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
        return Window((0, 0, size[1], size[0]), new, interpolation=self.interpolation)


@register("transform", "horizontal_flip")
@dataclass(kw_only=True, eq=False)
class HorizontalFlip(WindowStep):
    """Mirror images left to right; keypoints are swapped by ``augment.keypoints``.

    Args:
        p: Probability that an image is mirrored.
    """

    p: Share = 0.5

    def window(self, size: Size, rng: np.random.Generator, boxes: Any) -> Window:
        """Return the whole image, mirrored or not."""
        return Window((0, 0, size[1], size[0]), size, mirrored=bool(rng.random() < self.p))


def between(share: float, room: int) -> int:
    """Return an integer from 0 to `room`, both included, for a share from 0 up to 1."""
    place = min(int(share * (abs(room) + 1)), abs(room))
    return place if room >= 0 else -place
