"""Typical user code for a peer: encoded bytes to a random resized crop, flipped at random.

It uses OpenCV alone, which costs less than any stack. It draws as torchvision's RandomResizedCrop
does (scale 0.08 to 1, ratio 3/4 to 4/3), and resizes bilinearly without antialiasing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

Draw = Callable[[], float]


def decode(data: bytes, decoder: str) -> Any:
    """Decode the bytes of an image file to uint8 [H, W, 3], RGB."""
    import cv2
    import numpy as np

    if decoder == "simplejpeg":
        import simplejpeg

        return simplejpeg.decode_jpeg(data, strict=False)
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)


def augment(image: Any, size: int, draw: Draw = random.random, out: Any = None) -> Any:
    """Return a random resized crop, flipped with probability 1/2, uint8 [size, size, 3].

    Args:
        image: uint8 [H, W, 3].
        size: Height and width to resize to.
        draw: Returns numbers in [0, 1).
        out: Destination, if given.
    """
    import cv2

    left, top, width, height = draw_crop(image.shape[1], image.shape[0], draw)
    crop = image[top : top + height, left : left + width]
    flipped = draw() < 0.5
    resized = cv2.resize(crop, (size, size), dst=None if flipped else out)
    return cv2.flip(resized, 1, dst=out) if flipped else resized


def draw_crop(width: int, height: int, draw: Draw) -> tuple[int, int, int, int]:
    """Return the box of RandomResizedCrop: left, top, width, height."""
    for _ in range(10):
        area = width * height * (0.08 + 0.92 * draw())
        ratio = math.exp((2 * draw() - 1) * math.log(4 / 3))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(draw() * (width - w + 1)), int(draw() * (height - h + 1)), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def load(data: bytes, decoder: str, size: int, draw: Draw = random.random) -> Any:
    """Decode and augment the bytes of an image file: uint8 [size, size, 3]."""
    return augment(decode(data, decoder), size, draw)


def load_file(path: str, decoder: str, size: int, draw: Draw = random.random) -> Any:
    """Read, decode and augment an image file."""
    with open(path, "rb") as file:
        return load(file.read(), decoder, size, draw)


def load_files(paths: Sequence[str], decoder: str, size: int) -> Any:
    """Return a batch of files, each written to its row: uint8 [B, size, size, 3]."""
    import numpy as np

    batch = np.empty((len(paths), size, size, 3), np.uint8)
    for path, out in zip(paths, batch, strict=True):
        with open(path, "rb") as file:
            augment(decode(file.read(), decoder), size, out=out)
    return batch


def one_thread_each(*_: Any) -> None:
    """Prevent OpenCV, and torch if imported, from starting threads of their own."""
    import sys

    import cv2

    cv2.setNumThreads(0)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
