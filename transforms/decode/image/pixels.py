"""Convert pixels to a mode, and rotate them upright."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Box, Part, RecordError

Image = NDArray[np.uint8]

CHANNELS = {"RGB": 3, "L": 1, "RGBA": 4}
_COLOURS = {1: "GRAY", 3: "RGB", 4: "RGBA"}  # OpenCV's names, by channels


def convert(image: Image, mode: str) -> Image:
    """Convert uint8 [H, W, C] in grey, RGB or RGBA to `mode`; copy only if the mode differs."""
    stored, wanted = _COLOURS[image.shape[2]], _COLOURS[CHANNELS[mode]]
    if stored == wanted:
        return image
    import cv2

    code = getattr(cv2, f"COLOR_{stored}2{wanted}")
    return cv2.cvtColor(np.ascontiguousarray(image), code).reshape(*image.shape[:2], -1)


def upright(image: Image, orientation: int) -> Image:
    """Rotate and mirror an image by its EXIF orientation, 1 .. 8."""
    if orientation >= 5:
        image = image.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    return image


def is_pixels(image: Any) -> bool:
    """Return whether an image is not a file; refuse arrays other than uint8 [H, W, C]."""
    if not isinstance(image, np.ndarray):
        return False
    right = image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] in _COLOURS
    if not right or not image.size:
        raise RecordError(
            f"an image of {image.dtype} {list(image.shape)}, expected uint8 [H, W, 1, 3 or 4]"
        )
    return True


def pixels_around(image: Image, mode: str, box: Box | None) -> Part:
    """Return a box of an image in a mode, a view if the mode fits, and its column and row."""
    left, top, right, bottom = box or (0, 0, image.shape[1], image.shape[0])
    image = convert(image[top:bottom, left:right], mode)
    if image.flags.c_contiguous and not image.flags.writeable:
        image = image.copy()  # later steps may write to contiguous arrays
    return image, left, top
