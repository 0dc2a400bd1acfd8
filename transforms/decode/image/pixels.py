"""Convert pixels to a mode, and rotate them upright."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Box, RecordError

Image = NDArray[np.uint8]

CHANNELS = {"RGB": 3, "L": 1, "RGBA": 4}
_COLOURS = {1: "GRAY", 3: "RGB", 4: "RGBA"}  # OpenCV's names, by channels


def is_pixels(image: Any) -> bool:
    """Return whether an image is an array, not a file."""
    return isinstance(image, np.ndarray)


def convert(image: Image, mode: str) -> Image:
    """Convert uint8 [H, W, C] in grey, RGB or RGBA to `mode`; copy only if the mode differs."""
    stored, wanted = _COLOURS[image.shape[2]], _COLOURS[CHANNELS[mode]]
    if stored == wanted:
        return image
    import cv2

    code = getattr(cv2, f"COLOR_{stored}2{wanted}")
    return cv2.cvtColor(np.ascontiguousarray(image), code).reshape(*image.shape[:2], -1)


def upright(image: Image, orientation: int) -> Image:
    """Rotate and mirror an image by its EXIF orientation, 2 .. 8."""
    if orientation >= 5:
        image = image.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    return np.ascontiguousarray(image)


def check_array(image: NDArray[Any]) -> None:
    """Refuse arrays other than uint8 [H, W, C] in grey, RGB or RGBA."""
    if image.dtype.str != "|u1" or image.ndim != 3 or image.shape[2] not in CHANNELS.values():
        raise RecordError(
            f"an image of {image.dtype} {list(image.shape)}; expected a file, or uint8 [H, W, C] "
            f"with 1, 3 or 4 channels"
        )
    if not image.size:
        raise RecordError(f"an image of {image.shape[1]}x{image.shape[0]} pixels")


def array_around(image: Image, mode: str, box: Box | None) -> tuple[Image, int, int]:
    """Return a box of an image in a mode, and the column and row at which the box begins.

    The result is a view if the mode fits. A contiguous read-only view is copied, since later steps
    may write to contiguous arrays.
    """
    left, top = (box[0], box[1]) if box is not None else (0, 0)
    if box is not None:
        image = image[box[1] : box[3], box[0] : box[2]]
    if image.shape[2] != CHANNELS[mode]:
        image = convert(image, mode)
    if image.flags.c_contiguous and not image.flags.writeable:
        image = image.copy()
    return image, left, top
