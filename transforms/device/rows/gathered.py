"""Gather rows of a large array and change them in one go, as a chain of steps would."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PIECE_BYTES = 8 << 20
MOST_PIXEL_BYTES = 512  # channels of bytes that OpenCV mirrors
_MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class ShiftAndMirror:
    """A change that moves images by random pixels, with zeros beyond their edges, and mirrors some.

    Attributes:
        shift_key: Of `core.rng.batch_key`.
        padding: By how many pixels at most, up, down, left and right.
        mirror_key: As `shift_key`.
        below: Mirrored are those of which the upper 53 bits of the row's word are below this.
    """

    shift_key: int = 0
    padding: int = 0
    mirror_key: int = 0
    below: int = 0

    def then(self, other: ShiftAndMirror) -> ShiftAndMirror | None:
        """Join it with what follows; None where the two are not one."""
        if other.padding and (self.padding or self.below):
            return None
        if other.below and self.below:
            return None
        shift, mirror = other if other.padding else self, other if other.below else self
        return ShiftAndMirror(shift.shift_key, shift.padding, mirror.mirror_key, mirror.below)


@cache
def compiled_rows() -> Any:
    """Import the compiled functions; None without numba, or with one that does not fit."""
    try:
        from penstock.transforms.device.rows import compiled
    except ImportError:
        return None
    return compiled


def can_be_gathered(array: NDArray[Any]) -> bool:
    """Whether `gathered` takes an array of images or masks, [N, H, W, ...], and can be had."""
    if not array.flags.c_contiguous or not all(array.shape):
        return False
    if array.dtype.kind == "f" and array.ndim == 4:  # those are [N, C, H, W] to every step
        return False
    fits = array.itemsize * math.prod(array.shape[3:]) <= MOST_PIXEL_BYTES
    return fits and compiled_rows() is not None


def gathered(
    array: NDArray[Any],
    rows: NDArray[np.int64],
    positions: NDArray[np.int64],
    epoch: int,
    change: ShiftAndMirror,
    *,
    allocate: Callable[[int], Any] | None,
) -> NDArray[Any]:
    """Gather rows of [N, H, W, ...], shifted and mirrored, in the array's own type.

    Args:
        array: All images, in one piece.
        rows: Those that are gathered, int64 [n], within 0 .. N - 1.
        positions: Positions in the epoch, int64 [n].
        epoch: The epoch.
        change: What is done to them.
        allocate: Gives memory for the result; None takes ordinary memory.
    """
    import cv2

    compiled = compiled_rows()
    height, width = array.shape[1:3]
    pixel = array.itemsize * math.prod(array.shape[3:])
    size = height * width * pixel
    all_bytes = len(rows) * size
    memory = np.empty(all_bytes, np.uint8) if allocate is None else allocate(all_bytes)
    out = np.frombuffer(memory, np.uint8, all_bytes)
    source = np.asarray(array).reshape(-1).view(np.uint8)
    rows, positions = np.ascontiguousarray(rows), np.ascontiguousarray(positions)
    most = max(1, _PIECE_BYTES // size)
    apart = np.empty(min(most, len(rows)) * size if change.below else 0, np.uint8)
    mirrored = np.empty(min(most, len(rows)), np.int64)
    for start in range(0, len(rows), most):
        piece = slice(start, start + most)
        to = out[start * size : (start + most) * size]
        count = compiled.gather_shifted(
            source,
            rows[piece],
            to,
            apart,
            mirrored,
            positions[piece],
            epoch,
            change.shift_key & _MASK64,
            change.padding,
            change.mirror_key & _MASK64,
            change.below,
            (height, width, pixel),
        )
        if count:
            tall = apart[: count * size].reshape(-1, width, pixel)
            cv2.flip(tall, 1, dst=tall)
            compiled.scatter(apart, to, mirrored[:count], size)
    return out.view(array.dtype).reshape(len(rows), *array.shape[1:])
