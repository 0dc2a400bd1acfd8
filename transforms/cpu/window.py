"""A window of an image: cropped, resized and mirrored, decoded only as far as needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Box, PendingImage

Size = tuple[int, int]
Image = NDArray[Any] | PendingImage
Interpolation = Literal["area", "linear", "cubic", "nearest"]

# Extra source pixels on each side of a resized part: one for interpolation, one for rounding.
_CONTEXT = 2
_MAX_CHANNELS = 4  # of one call of OpenCV's resize


@dataclass(frozen=True, slots=True)
class Window:
    """A box of an image, resized to `size`, cut to `part`, then mirrored.

    Attributes:
        box: The box in the image.
        size: Height and width to which the box is resized.
        part: The part of the resized box to keep; all of a box that is not resized.
        mirrored: Whether left and right are exchanged at the end.
        interpolation: How pixels are resized; ``area`` means ``linear`` where a side grows.
        fill: Values of pixels and mask pixels outside the image, if the box exceeds it. Such a
            box is not resized.
    """

    box: Box
    size: Size
    part: Box
    mirrored: bool = False
    interpolation: Interpolation = "linear"
    fill: tuple[int, int] | None = None

    @staticmethod
    def of(box: Box, size: Size | None = None, **more: Any) -> Window:
        """Return the window of a box that is resized to height and width, or not at all."""
        size = size or _size(box)
        return Window(box, size, _all(size), **more)

    @property
    def resizes(self) -> bool:
        """Whether the box changes its size."""
        return self.size != _size(self.box)

    @property
    def shape(self) -> Size:
        """Height and width of the result."""
        return _size(self.part)

    def then(self, after: Window) -> Window | None:
        """Return one window for both, or None if pixels must be made in between."""
        if not _contains(_all(self.shape), after.box):
            return None
        if after.resizes and (self.resizes or self.fill is not None):
            return None
        box, part = after.box, after.part
        if self.mirrored:
            box, part = _mirrored(box, self.shape[1]), _mirrored(part, after.size[1])
        mirrored = self.mirrored != after.mirrored
        if self.resizes:
            part = _moved(box, self.part)
            return Window(self.box, self.size, part, mirrored, self.interpolation)
        box = _moved(box, self.box)
        return Window(box, after.size, part, mirrored, after.interpolation, self.fill)

    def points(self, points: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Move points x, y, [n, 2], that name pixels by their columns and rows."""
        moved = self._moved(points)
        if self.mirrored:
            moved[:, 0] = self.shape[1] - 1 - moved[:, 0]
        return moved

    def boxes(self, boxes: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Move boxes, xyxy [n, 4], without cutting them at the edges."""
        moved = self._moved(boxes.reshape(-1, 2)).reshape(-1, 4)
        if self.mirrored:
            moved[:, [0, 2]] = self.shape[1] - moved[:, [2, 0]]
        return moved

    def _moved(self, points: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        height, width = _size(self.box)
        scale = np.array([self.size[1] / width, self.size[0] / height])
        moved: NDArray[np.float64] = (points - np.array(self.box[:2])) * scale
        return moved - np.array(self.part[:2])

    def masks(self, masks: NDArray[Any], fill: int = 0) -> NDArray[Any]:
        """Return the windows of masks, [..., H, W]; each pixel takes the nearest one.

        Pixels outside the image get the value `fill`.
        """
        rows, columns = self._nearest()
        height, width = masks.shape[-2:]
        cut = masks.take(rows.clip(0, height - 1), -2).take(columns.clip(0, width - 1), -1)
        if self.fill is not None:
            cut[..., (rows < 0) | (rows >= height), :] = fill
            cut[..., (columns < 0) | (columns >= width)] = fill
        return cut

    def _nearest(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the row and the column in the image of each row and column of the result."""
        found = []
        for axis in (1, 0):
            start, stop = self.part[axis], self.part[axis + 2]
            length, new = self.box[axis + 2] - self.box[axis], self.size[1 - axis]
            found.append(self.box[axis] + (2 * np.arange(start, stop) + 1) * length // (2 * new))
        return found[0], found[1][::-1] if self.mirrored else found[1]

    def pixels(self, image: Image, into: NDArray[np.uint8] | None = None) -> NDArray[Any]:
        """Return the pixels [h, w, C] of an image [H, W, C], in `into` if shape and dtype fit.

        Raises:
            RecordError: The decoded part of a pending image is damaged.
        """
        import cv2

        mirrored = self.mirrored
        if self.resizes and self.interpolation == "nearest":
            pixels, mirrored = self._nearest_pixels(image), False
        elif self.part == _all(self.size):
            pixels = self._cropped(image)
        else:
            pixels = self._resized_part(image)
        shape = (*self.shape, image.shape[2])
        resizes = pixels.shape != shape
        if into is not None and into.shape == shape and into.dtype == pixels.dtype:
            target: NDArray[Any] = into
        elif resizes or mirrored:
            target = np.empty(shape, pixels.dtype)
        else:
            return np.require(pixels, requirements=("C", "W"))
        if resizes:
            _resize(pixels, self.size[::-1], method=self._method(), into=target)
            if mirrored:
                cv2.flip(target, 1, dst=target)  # in place, while it is in the cache
        elif mirrored:
            cv2.flip(pixels, 1, dst=target)
        else:
            target[...] = pixels
        return target

    def _method(self) -> int:
        """Return OpenCV's number of the interpolation."""
        import cv2

        grows = any(new > old for new, old in zip(self.size, _size(self.box), strict=True))
        if self.interpolation == "area" and not grows:
            return cv2.INTER_AREA
        return cv2.INTER_CUBIC if self.interpolation == "cubic" else cv2.INTER_LINEAR

    def _cropped(self, image: Image) -> NDArray[Any]:
        """Return the pixels of the box; a pending image may be reduced before it is resized."""
        inner = _common(self.box, _all(image.shape[:2]))
        if isinstance(image, PendingImage):
            pixels, box = image.crop(inner, self.size if self.resizes else None)
        else:
            pixels, box = image, inner
        pixels = pixels[box[1] : box[3], box[0] : box[2]]
        if inner == self.box:
            return pixels
        height, width = _size(self.box)
        assert self.fill is not None
        canvas = np.full((height, width, image.shape[2]), self.fill[0], pixels.dtype)
        left, top, right, bottom = _moved(inner, (-self.box[0], -self.box[1]))
        canvas[top:bottom, left:right] = pixels
        return canvas

    def _nearest_pixels(self, image: Image) -> NDArray[Any]:
        rows, columns = self._nearest()
        left, top = int(columns.min()), int(rows.min())
        box = (left, top, int(columns.max()) + 1, int(rows.max()) + 1)
        return Window.of(box)._cropped(image).take(rows - top, 0).take(columns - left, 1)

    def _resized_part(self, image: Image) -> NDArray[Any]:
        """Return the part, resized as within the whole box, from only the pixels it needs.

        OpenCV gets scale factors instead of a size, so that it resizes the upper left of a box
        exactly as within the whole box.
        """
        height, width = _size(self.box)
        factor = 1
        if isinstance(image, PendingImage) and self.box == _all(image.shape[:2]):
            factor = image.factor_for(self.box, self.size)
        # The last of the reduced pixels may be partial; the scale counts only its part.
        scales = self.size[1] * factor / width, self.size[0] * factor / height
        lengths = -(-width // factor), -(-height // factor)
        ranges = [
            _needed(self.part[axis], self.part[axis + 2], scales[axis], lengths[axis])
            for axis in (0, 1)
        ]
        if self.interpolation == "cubic":
            ranges = [(0, length) for length in lengths]
        (x_first, x_end), (y_first, y_end) = ranges
        needed = (x_first, y_first, x_end, y_end)
        pixels = _upper_left(image, self.box, needed, factor)
        if scales != (1, 1):
            pixels = _resize(pixels, None, scales, method=self._method())
        return pixels[self.part[1] : self.part[3], self.part[0] : self.part[2]]


def _resize(
    pixels: NDArray[Any],
    sides: Size | None,
    scales: tuple[float, float] = (0, 0),
    *,
    method: int,
    into: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Resize pixels [H, W, C] to width and height `sides`, or by the scales of x and y."""
    import cv2

    if pixels.shape[2] <= _MAX_CHANNELS:
        resized = cv2.resize(pixels, sides, into, *scales, method)
        return resized.reshape(*resized.shape[:2], pixels.shape[2])
    parts = np.split(pixels, range(_MAX_CHANNELS, pixels.shape[2], _MAX_CHANNELS), 2)
    resized = [_resize(np.ascontiguousarray(part), sides, scales, method=method) for part in parts]
    return np.concatenate(resized, 2, out=into)


def _needed(start: int, stop: int, scale: float, length: int) -> tuple[int, int]:
    """Return first and end of the source pixels for results `start` .. `stop` - 1."""
    first, end = math.floor(start / scale) - _CONTEXT, math.ceil(stop / scale) + _CONTEXT
    return max(0, first), min(length, end)


def _upper_left(image: Image, box: Box, needed: Box, factor: int) -> NDArray[Any]:
    """Return the upper left of a box up to the end of `needed`, decoded only inside `needed`."""
    x_first, y_first, x_end, y_end = needed
    if not isinstance(image, PendingImage):
        return image[box[1] : box[1] + y_end, box[0] : box[0] + x_end]
    first = box[0] + x_first * factor, box[1] + y_first * factor
    end = min(box[2], box[0] + x_end * factor), min(box[3], box[1] + y_end * factor)
    pixels, left, top = image.around((*first, *end), factor)
    left, top = left - box[0] // factor, top - box[1] // factor
    inner = pixels[max(-top, 0) : y_end - top, max(-left, 0) : x_end - left]
    if left <= 0 and top <= 0:
        return inner
    left, top = max(left, 0), max(top, 0)
    whole: NDArray[np.uint8] = np.empty((y_end, x_end, image.shape[2]), np.uint8)
    whole[top:, left:] = inner
    return whole


def _size(box: Box) -> Size:
    return box[3] - box[1], box[2] - box[0]


def _all(size: Size | tuple[int, ...]) -> Box:
    """Return the box of everything in an image of a height and width."""
    return 0, 0, size[1], size[0]


def _moved(box: Box, by: tuple[int, ...]) -> Box:
    return box[0] + by[0], box[1] + by[1], box[2] + by[0], box[3] + by[1]


def _mirrored(box: Box, width: int) -> Box:
    return width - box[2], box[1], width - box[0], box[3]


def _common(box: Box, other: Box) -> Box:
    left, top = max(box[0], other[0]), max(box[1], other[1])
    return left, top, min(box[2], other[2]), min(box[3], other[3])


def _contains(box: Box, inner: Box) -> bool:
    return _common(box, inner) == inner
