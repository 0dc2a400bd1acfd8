"""Floors, the work no loader can avoid: decoding alone, or cropping and resizing alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rows import Work
from rows.photo import augment, one_thread_each

LIBRARIES = ("simplejpeg", "cv2", "numpy")
DISTRIBUTIONS = ("simplejpeg",)
MAX_SIDE = 500
_TASK = 16


def open_batches(work: Work, option: str) -> Callable[[], Iterator[int]]:
    """``decode``: whole images and nothing else; ``resize``: raw ones into a batch."""
    one_thread_each()
    do = _decode if option == "decode" else _resizing(work)
    pool = ThreadPoolExecutor(work.workers)
    files = work.files

    def epoch() -> Iterator[int]:
        order = random.sample(files, len(files))
        tasks = [order[at : at + _TASK] for at in range(0, len(order), _TASK)]
        yield from pool.map(do, tasks)

    return epoch


def _decode(paths: list[str]) -> int:
    for path in paths:
        _decoded(path)
    return len(paths)


def _decoded(path: str) -> Any:
    import simplejpeg

    with open(path, "rb") as file:
        data = file.read()
    try:
        return simplejpeg.decode_jpeg(data)
    except ValueError:
        return simplejpeg.decode_jpeg(data, strict=False)


def prepare(work: Work, option: str) -> None:
    """Write all raw images to one file, one after the other, as a packed data set does."""
    import cv2
    import numpy as np

    if option != "resize":
        return
    Path(work.prepared).mkdir(parents=True, exist_ok=True)
    shapes = []
    with Path(work.prepared, "pixels").open("wb") as file:
        for path in work.files:
            image = _decoded(path)
            ratio = min(1.0, MAX_SIDE / max(image.shape[:2]))
            size = (int(image.shape[1] * ratio), int(image.shape[0] * ratio))
            image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
            file.write(image.data)
            shapes.append(image.shape)
    np.save(Path(work.prepared, "shapes.npy"), np.array(shapes, np.int64))


def _resizing(work: Work) -> Callable[[list[str]], int]:
    import numpy as np

    pixels = np.memmap(Path(work.prepared, "pixels"), np.uint8, "r")
    shapes = np.load(Path(work.prepared, "shapes.npy"))
    ends = np.cumsum(shapes.prod(axis=1))
    images = {
        path: pixels[end - shape.prod() : end].reshape(shape)
        for path, shape, end in zip(work.files, shapes, ends, strict=True)
    }

    def resize(paths: list[str]) -> int:
        batch = np.empty((len(paths), work.size, work.size, 3), np.uint8)
        for path, out in zip(paths, batch, strict=True):
            augment(images[path], work.size, out=out)
        return len(paths)

    return resize
