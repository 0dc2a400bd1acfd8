"""The first steps of an albumentations Compose, a resize and a centre crop, decoding less.

What the crop leaves out of the resized image is not decoded. The pixels are those of Compose:
with OpenCV's scale factors given and not its size, the resize of an image that is cut on the
right and at the bottom maps every pixel as that of the whole image does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from datasets.pending_image import PendingImage
from transforms.image_head import ImageHead

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from datasets.pending_image import Box

    Image = NDArray[np.uint8]

# The release whose code the tests compare this with; in another one Compose does it all.
_VERSION = "2.0.8"
_RESIZE_MODULE = "albumentations.augmentations.geometric.resize"
_RESIZES = ("LongestMaxSize", "Resize", "SmallestMaxSize")
_CROP_MODULE = "albumentations.augmentations.crops.transforms"
_NEAREST, _LINEAR, _AREA = 0, 1, 3  # OpenCV's numbers
# Source pixels that count beyond those under the result: of the neighbour, and of rounding.
_CONTEXT = 2


class ResizedHead(ImageHead):
    """A resize at the start of a Compose and a centre crop behind it; the rest runs as ever.

    Args:
        compose: A Compose without processors, for which `compile_resized_head` found this.

    Attributes:
        crops: It needs no more than a part of a pending image.
    """

    crops = True

    def __init__(self, compose: Any) -> None:
        self._compose = compose
        self._resize, self._crop, *self._rest = compose.transforms

    @staticmethod
    def takes(image: Any) -> bool:
        """Whether the head begins with an image: one that is pending, of at most 4 channels."""
        return type(image) is PendingImage and image.shape[2] <= 4

    def draw(self, image: PendingImage) -> Callable[[Image | None], Image]:
        """Make the draws of the head; what is returned makes the pixels, see a call."""
        # Whether to run at all: Compose draws that even where p is 1.
        self._compose.py_random.random()
        return functools.partial(self._put, image)

    def _put(self, image: PendingImage, into: Image | None) -> Image:
        import numpy as np

        pixels = self._pixels(image)
        if into is None or into.shape != pixels.shape:
            return np.ascontiguousarray(pixels)
        into[...] = pixels
        return into

    def _pixels(self, image: PendingImage) -> Image:
        """Resize and crop, at the centre."""
        height, width, channels = image.shape
        size, interpolation = self._size(height, width)
        params = self._crop.get_params_dependent_on_data({"shape": (*size, channels)}, {})
        factor = image.factor_for((0, 0, width, height), size)
        if params.get("pad_params") is not None or interpolation not in (_NEAREST, _LINEAR, _AREA):
            resized = _resized(image.whole(), size, interpolation)
            cropped: Image = self._crop.apply(resized, **params)
            return cropped
        x_min, y_min, x_max, y_max = (int(edge) for edge in params["crop_coords"])
        # The last of the smaller pixels may be less than a whole one; the scale counts the part.
        x_scale, y_scale = size[1] * factor / width, size[0] * factor / height
        x_first, x_end = _needed(x_min, x_max, x_scale, -(-width // factor))
        y_first, y_end = _needed(y_min, y_max, y_scale, -(-height // factor))
        upper_left = _decode(image, (x_first, y_first, x_end, y_end), factor)
        if x_scale != 1 or y_scale != 1:
            upper_left = _scaled(upper_left, x_scale, y_scale, interpolation)
        return upper_left[y_min:y_max, x_min:x_max]

    def _size(self, height: int, width: int) -> tuple[tuple[int, int], int]:
        """Height and width after the resize, and OpenCV's way of doing it."""
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


def compile_resized_head(compose: Any) -> ResizedHead | None:
    """The first steps of a Compose; None where they are not a resize and a centre crop."""
    import albumentations

    if albumentations.__version__ != _VERSION or len(compose.transforms) < 2:
        return None
    resize, crop = compose.transforms[:2]
    fits = (
        type(resize).__module__ == _RESIZE_MODULE  # a subclass may do anything
        and type(resize).__name__ in _RESIZES
        and type(crop).__module__ == _CROP_MODULE
        and type(crop).__name__ == "CenterCrop"
        and resize.p >= 1
        and crop.p >= 1
    )
    return ResizedHead(compose) if fits else None


def _needed(start: int, stop: int, scale: float, length: int) -> tuple[int, int]:
    """The first source pixel, and the end of those, that results `start` .. `stop` - 1 come of."""
    first, end = math.floor(start / scale) - _CONTEXT, math.ceil(stop / scale) + _CONTEXT
    return max(0, first), min(length, end)


def _decode(image: PendingImage, box: Box, factor: int) -> Image:
    """The image up to the right and lower end of a box, in which only the box is decoded."""
    import numpy as np

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
