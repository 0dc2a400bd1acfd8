"""Run the first steps of an albumentations Compose without Compose.

A crop is drawn from the image's size before decoding, so the decoder skips all other pixels.
Draws come from albumentations' own classes in the order of Compose, and pixels from the same
OpenCV calls. Results are written directly to the caller's buffer.
"""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Box, PendingImage

Image = NDArray[np.uint8]

# The tests compare with this release; with any other, Compose runs all steps.
_VERSION = "2.0.8"
_MODULES = "albumentations.augmentations."
_CROP_MODULE = f"{_MODULES}crops.transforms"
_RESIZE_MODULE = f"{_MODULES}geometric.resize"
_FLIP_MODULE = f"{_MODULES}geometric.flip"
# Crops whose box depends only on the image's shape and the draws.
_CROPS = (
    "CenterCrop",
    "Crop",
    "RandomCrop",
    "RandomCropFromBorders",
    "RandomResizedCrop",
    "RandomSizedCrop",
)
_RESIZES = ("LongestMaxSize", "Resize", "SmallestMaxSize")
_FLIPS = ("HorizontalFlip", "VerticalFlip")
# OpenCV's code by (columns reversed, rows reversed).
_FLIP_CODES = {(True, False): 1, (False, True): 0, (True, True): -1}
_NEAREST, _LINEAR, _AREA = 0, 1, 3  # OpenCV's numbers
_MAX_CHANNELS = 4  # with more, albumentations calls OpenCV in chunks
# Extra source pixels on each side of a resized part: one for interpolation, one for rounding.
_CONTEXT = 2


def take_first_steps(compose: Any) -> FirstSteps | None:
    """Return the first steps of a Compose without processors.

    The result is None for another version of albumentations, or another kind of first step.
    """
    import albumentations

    steps = compose.transforms
    if albumentations.__version__ != _VERSION or not steps:
        return None
    first = steps[0]
    if len(steps) > 1 and _is(first, _RESIZE_MODULE, _RESIZES) and first.p >= 1:
        if _is(steps[1], _CROP_MODULE, ("CenterCrop",)) and steps[1].p >= 1:
            return ResizeAndCrop(compose)
    if _is(first, _CROP_MODULE, _CROPS) or _is(first, _RESIZE_MODULE, ("Resize",)):
        return CropAndFlips(compose)
    return None


def _is(transform: Any, module: str, names: tuple[str, ...]) -> bool:
    """Return whether a transform is exactly of one of these classes; a subclass may do anything."""
    kind = type(transform)
    return kind.__module__ == module and kind.__name__ in names


class FirstSteps(ABC):
    """First steps of a Compose, drawn before there are pixels; for one thread.

    Attributes:
        crops: Whether a part of a pending image is enough.
        draws_first: Whether `draw` makes every draw of the Compose.
    """

    crops: bool

    def __init__(self, compose: Any, count: int) -> None:
        self._compose = compose
        self._rest = compose.transforms[count:]
        self.draws_first = not self._rest

    def __call__(self, image: Any, into: Image | None = None) -> Image:
        """Return ``compose(image=...)["image"]``, uint8 [H, W, C], decoded only as far as needed.

        The result is written to `into`, if the shape fits and no step follows.

        Raises:
            RecordError: The decoded part is damaged.
        """
        pixels = self.draw(image)
        if not self._rest:
            return pixels(into)
        data: dict[str, Any] = {"image": pixels(None)}
        for transform in self._rest:
            data = transform(**data)
        result: Image = data["image"]
        return result

    @staticmethod
    @abstractmethod
    def takes(image: Any) -> bool:
        """Return whether the steps can begin with an image."""

    def draw(self, image: Any) -> Callable[[Image | None], Image]:
        """Make the draws of these steps; return the function that makes the pixels."""
        # Compose draws whether to run at all, even if p is 1.
        self._compose.py_random.random()
        return functools.partial(self._pixels, image, *self._drawn(image.shape))

    @abstractmethod
    def _drawn(self, shape: tuple[int, int, int]) -> Sequence[Any]:
        """Make the draws for an image, as arguments of `_pixels`."""

    @abstractmethod
    def _pixels(self, image: Any, *drawn: Any) -> Image:
        """Make the pixels as drawn; the last argument is an optional output buffer."""


class CropAndFlips(FirstSteps):
    """A crop or resize, and the flips that follow."""

    def __init__(self, compose: Any) -> None:
        self._first = compose.transforms[0]
        self.crops = _is(self._first, _CROP_MODULE, _CROPS)
        following = compose.transforms[1:]
        flips = itertools.takewhile(lambda step: _is(step, _FLIP_MODULE, _FLIPS), following)
        self._flips = list(flips)
        super().__init__(compose, 1 + len(self._flips))

    @staticmethod
    def takes(image: Any) -> bool:
        """Return whether an image is uint8 [H, W, 1..4], or pending."""
        if type(image) is PendingImage:
            return image.shape[2] <= _MAX_CHANNELS
        return (
            type(image) in (np.ndarray, np.memmap)
            and image.dtype == np.uint8
            and image.ndim == 3
            and 1 <= image.shape[2] <= _MAX_CHANNELS
        )

    def _drawn(self, shape: tuple[int, int, int]) -> tuple[dict[str, Any] | None, int | None]:
        """Draw the parameters of the first step, None to skip it, and OpenCV's flip code."""
        params: dict[str, Any] | None = None
        if self._first.should_apply():
            params = self._first.get_params_dependent_on_data({"shape": shape}, {})
        turned = [False, False]
        for flip in self._flips:
            turned[_FLIPS.index(type(flip).__name__)] ^= flip.should_apply()
        return params, _FLIP_CODES.get((turned[0], turned[1]))

    def _pixels(
        self,
        image: Image | PendingImage,
        params: dict[str, Any] | None,
        flip_code: int | None,
        into: Image | None,
    ) -> Image:
        import cv2

        pixels, size = self._cropped(image, params)
        shape = (*size, pixels.shape[2])
        if into is not None and into.shape == shape:
            target = into
        elif shape == pixels.shape and flip_code is None:
            return np.ascontiguousarray(pixels)
        else:
            target = np.empty(shape, np.uint8)
        if shape != pixels.shape:
            shrinks = pixels.shape[0] > size[0] or pixels.shape[1] > size[1]
            area = shrinks and self._first.area_for_downscale is not None
            interpolation = cv2.INTER_AREA if area else self._first.interpolation
            cv2.resize(pixels, size[::-1], dst=target, interpolation=interpolation)
            if flip_code is not None:
                cv2.flip(target, flip_code, dst=target)  # in place, while it is in the cache
        elif flip_code is not None:
            cv2.flip(pixels, flip_code, dst=target)
        else:
            target[...] = pixels
        return target

    def _cropped(
        self, image: Image | PendingImage, params: dict[str, Any] | None
    ) -> tuple[Image, tuple[int, int]]:
        """Decode and crop; return the pixels, and the height and width to resize them to."""
        first = self._first
        if params is None:
            whole = _whole(image)
            return whole, whole.shape[:2]
        if not self.crops:
            return _whole(image), (first.height, first.width)
        x_min, y_min, x_max, y_max = (int(edge) for edge in params["crop_coords"])
        height, width, _ = image.shape
        inside = 0 <= x_min < x_max <= width and 0 <= y_min < y_max <= height
        if not inside or params.get("pad_params") is not None:
            cropped: Image = first.apply(_whole(image), **params)
            return cropped, cropped.shape[:2]
        size = getattr(first, "size", None)
        if isinstance(image, PendingImage):
            image, (x_min, y_min, x_max, y_max) = image.crop((x_min, y_min, x_max, y_max), size)
        part = image[y_min:y_max, x_min:x_max]
        return part, part.shape[:2] if size is None else tuple(size)


def _whole(image: Image | PendingImage) -> Image:
    """Return all pixels as one contiguous array."""
    if isinstance(image, PendingImage):
        return image.whole()
    return np.ascontiguousarray(image)


class ResizeAndCrop(FirstSteps):
    """A resize and a centre crop, which decode only the source pixels of the crop.

    OpenCV gets scale factors instead of a size. The upper left part of an image is then resized
    exactly as within the whole image.
    """

    crops = True

    def __init__(self, compose: Any) -> None:
        super().__init__(compose, 2)
        self._resize, self._crop = compose.transforms[:2]

    @staticmethod
    def takes(image: Any) -> bool:
        """Return whether an image is pending, with at most 4 channels."""
        return type(image) is PendingImage and image.shape[2] <= _MAX_CHANNELS

    def _drawn(self, shape: tuple[int, int, int]) -> tuple[()]:
        return ()

    def _pixels(self, image: PendingImage, into: Image | None) -> Image:
        pixels = self._resized_and_cropped(image)
        if into is None or into.shape != pixels.shape:
            return np.ascontiguousarray(pixels)
        into[...] = pixels
        return into

    def _resized_and_cropped(self, image: PendingImage) -> Image:
        """Resize, then crop at the centre."""
        height, width, channels = image.shape
        size, interpolation = self._size(height, width)
        params = self._crop.get_params_dependent_on_data({"shape": (*size, channels)}, {})
        factor = image.factor_for((0, 0, width, height), size)
        if params.get("pad_params") is not None or interpolation not in (_NEAREST, _LINEAR, _AREA):
            resized = _resized(image.whole(), size, interpolation)
            cropped: Image = self._crop.apply(resized, **params)
            return cropped
        x_min, y_min, x_max, y_max = (int(edge) for edge in params["crop_coords"])
        # The last of the smaller pixels may be partial; the scale counts only its part.
        x_scale, y_scale = size[1] * factor / width, size[0] * factor / height
        x_first, x_end = _needed(x_min, x_max, x_scale, -(-width // factor))
        y_first, y_end = _needed(y_min, y_max, y_scale, -(-height // factor))
        upper_left = _decode(image, (x_first, y_first, x_end, y_end), factor)
        if x_scale != 1 or y_scale != 1:
            upper_left = _scaled(upper_left, x_scale, y_scale, interpolation)
        return upper_left[y_min:y_max, x_min:x_max]

    def _size(self, height: int, width: int) -> tuple[tuple[int, int], int]:
        """Return height and width after the resize, and OpenCV's interpolation."""
        resize = self._resize
        if type(resize).__name__ == "Resize":
            size = resize.height, resize.width
            shrinks = size[0] < height or size[1] < width
        else:
            params = resize.get_params_dependent_on_data({"shape": (height, width)}, {})
            scale = params["scale"]
            size = max(1, round(height * scale)), max(1, round(width * scale))
            shrinks = scale < 1
        area = shrinks and resize.area_for_downscale in ("image", "image_mask")
        return size, _AREA if area else resize.interpolation


def _needed(start: int, stop: int, scale: float, length: int) -> tuple[int, int]:
    """Return first and end of the source pixels for results `start` .. `stop` - 1."""
    first, end = math.floor(start / scale) - _CONTEXT, math.ceil(stop / scale) + _CONTEXT
    return max(0, first), min(length, end)


def _decode(image: PendingImage, box: Box, factor: int) -> Image:
    """Return the upper left image up to the end of a box, decoded only inside the box."""
    x_first, y_first, x_end, y_end = box
    height, width, channels = image.shape
    own = (
        x_first * factor,
        y_first * factor,
        min(width, x_end * factor),
        min(height, y_end * factor),
    )
    pixels, left, top = image.around(own, factor)
    part = pixels[: y_end - top, : x_end - left]
    if not left and not top:
        return part
    upper_left: Image = np.empty((y_end, x_end, channels), np.uint8)
    upper_left[top:, left:] = part
    return upper_left


def _resized(image: Image, size: tuple[int, int], interpolation: int) -> Image:
    import cv2

    if image.shape[:2] == size:
        return image
    resized = cv2.resize(image, size[::-1], interpolation=interpolation)
    return resized.reshape(*size, image.shape[2])


def _scaled(image: Image, x_scale: float, y_scale: float, interpolation: int) -> Image:
    import cv2

    scaled = cv2.resize(image, None, fx=x_scale, fy=y_scale, interpolation=interpolation)
    return scaled if scaled.ndim == 3 else scaled[..., None]
