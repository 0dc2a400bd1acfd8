"""Crop images at random or at the centre, and decode only the crop."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Gt, Le

from penstock.core.registry import register
from penstock.core.sample import Box
from penstock.transforms.cpu.window import Interpolation, Size, Window
from penstock.transforms.cpu.window_step import Sides, WindowStep, sides_of

_TRIES = 10
Share = Annotated[float, Gt(0), Le(1)]
Positive = Annotated[float, Gt(0)]


class _ResizedCrop(WindowStep):
    """A crop that is resized to one size."""

    crops: ClassVar[bool] = True

    def __init__(self, *, size: Sides, interpolation: Interpolation = "linear") -> None:
        self._size = sides_of(size)
        self._interpolation = interpolation

    def _resized(self, box: Box) -> Window:
        return Window.of(box, self._size, interpolation=self._interpolation)


@register("transform", "random_resized_crop")
class RandomResizedCrop(_ResizedCrop):
    """Crop a random part of random size and shape, and resize it to `size`.

    Source: Szegedy et al., "Going deeper with convolutions", CVPR 2015, section 6. If none of 10
    tries fits, the part is the largest with an allowed ratio at the centre, as in torchvision.

    Args:
        size: Height and width of the result, or one number for both.
        scale: Least and largest share of the image's area.
        ratio: Least and largest width / height of the part.
        interpolation: ``area`` averages where the image shrinks, ``linear`` is faster.
    """

    def __init__(
        self,
        *,
        size: Sides,
        scale: tuple[Share, Share] = (0.08, 1.0),
        ratio: tuple[Positive, Positive] = (0.75, 1.3333),
        interpolation: Interpolation = "linear",
    ) -> None:
        super().__init__(size=size, interpolation=interpolation)
        for name, (low, high) in {"scale": scale, "ratio": ratio}.items():
            if low > high:
                raise ValueError(
                    f"random_resized_crop: {name} is [{low}, {high}]; give the lower one first"
                )
        self._scale = scale
        self._ratio = ratio
        self._log_ratio = (math.log(ratio[0]), math.log(ratio[1]))

    def window(self, size: Size, rng: np.random.Generator, boxes: Any) -> Window:
        """Return the first of the tries that fits; always make the same number of draws."""
        height, width = size
        (low, high), (least, most) = self._scale, self._log_ratio
        draws = rng.random(2 * _TRIES + 2).tolist()
        for share, shape in zip(draws[:_TRIES], draws[_TRIES:-2], strict=True):
            area = height * width * (low + share * (high - low))
            ratio = math.exp(least + shape * (most - least))
            columns, rows = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < columns <= width and 0 < rows <= height:
                left, top = _between(draws[-2], width - columns), _between(draws[-1], height - rows)
                return self._resized((left, top, left + columns, top + rows))
        columns = min(width, max(1, round(height * self._ratio[1])))
        rows = min(height, max(1, round(width / self._ratio[0])))
        left, top = (width - columns) // 2, (height - rows) // 2
        return self._resized((left, top, left + columns, top + rows))


@register("transform", "box_safe_crop")
class BoxSafeCrop(_ResizedCrop):
    """Crop a random part with all boxes in it, and resize it to `size`.

    Without boxes the part is the whole image.

    Args:
        size: Height and width of the result, or one number for both.
        interpolation: ``area`` averages where the image shrinks, ``linear`` is faster.
    """

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
        return self._resized(
            (
                _between(draws[0], left),
                _between(draws[1], top),
                right + _between(draws[2], width - right),
                bottom + _between(draws[3], height - bottom),
            )
        )


class _Crop(WindowStep):
    """A crop of one size, which is not resized."""

    crops: ClassVar[bool] = True

    def __init__(
        self,
        *,
        size: Sides,
        fill: Annotated[int, Ge(0)] | None = None,
        mask_fill: int = 0,
    ) -> None:
        self._size = sides_of(size)
        self._fill = None if fill is None else (fill, mask_fill)

    def _rooms(self, size: Size) -> tuple[int, int]:
        """Return by how much the image's height and width exceed the part's."""
        rooms = size[0] - self._size[0], size[1] - self._size[1]
        if min(rooms) < 0 and self._fill is None:
            raise ValueError(
                f"a crop of {self._size[0]} x {self._size[1]} pixels, got an image of "
                f"{size[0]} x {size[1]}; put transform/resize before it, choose a smaller size, "
                f"or pad with fill=0"
            )
        return rooms

    def _part(self, top: int, left: int, rooms: tuple[int, int]) -> Window:
        box = (left, top, left + self._size[1], top + self._size[0])
        return Window.of(box, fill=self._fill if min(rooms) < 0 else None)


@register("transform", "random_crop")
class RandomCrop(_Crop):
    """Crop a part of `size` at a random place.

    Args:
        size: Height and width of the part, or one number for both.
        fill: Value that pads smaller images on both sides; null raises an error for them.
        mask_fill: Value that pads their masks.
    """

    def window(self, size: Size, rng: np.random.Generator, boxes: Any) -> Window:
        """Draw the place; raise ValueError if the image is too small and `fill` is None."""
        draws = rng.random(2).tolist()
        rooms = self._rooms(size)
        top, left = (
            _between(draw, room) if room > 0 else room // 2
            for draw, room in zip(draws, rooms, strict=True)
        )
        return self._part(top, left, rooms)


@register("transform", "center_crop")
class CenterCrop(_Crop):
    """Crop a part of `size` at the centre.

    Args:
        size: Height and width of the part, or one number for both.
        fill: Value that pads smaller images on both sides; null raises an error for them.
        mask_fill: Value that pads their masks.
    """

    def window(self, size: Size, rng: np.random.Generator, boxes: Any) -> Window:
        """Return the part; raise ValueError if the image is too small and `fill` is None."""
        rooms = self._rooms(size)
        return self._part(rooms[0] // 2, rooms[1] // 2, rooms)


def _between(share: float, room: int) -> int:
    """Return an integer from 0 to `room`, both included, for a share from 0 up to 1."""
    return min(int(share * (room + 1)), room)
