"""Rows of a large array as a chain of steps changes them, gathered and changed in one go."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PIECE_BYTES = 8 << 20
_MOST_PIXEL_BYTES = 512  # channels of bytes that OpenCV mirrors
_MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Shift:
    """A step that moves each image by a random number of pixels, with zeros beyond its edges.

    Attributes:
        key: Of `pipeline.rng.batch_key`.
        padding: By how many at most, up, down, left and right.
    """

    key: int
    padding: int


@dataclass(frozen=True, slots=True)
class Mirror:
    """A step that mirrors some images left to right.

    Attributes:
        key: Of `pipeline.rng.batch_key`.
        below: Those of which the upper 53 bits of the row's word are below this.
    """

    key: int
    below: int


@cache
def compiled_rows() -> Any:
    """The module of compiled functions; None without numba, or with one that does not fit."""
    try:
        from transforms import compiled_rows
    except ImportError:
        return None
    return compiled_rows


def can_be_gathered(array: NDArray[Any]) -> bool:
    """Whether `gathered` takes an array of images or masks, [N, H, W, ...], and can be had."""
    if not array.flags.c_contiguous or not all(array.shape):
        return False
    if array.dtype.kind == "f" and array.ndim == 4:  # those are [N, C, H, W] to every step
        return False
    fits = array.itemsize * math.prod(array.shape[3:]) <= _MOST_PIXEL_BYTES
    return fits and compiled_rows() is not None


def shift_and_mirror(parts: Sequence[Any]) -> tuple[Shift, Mirror] | None:
    """A chain as one shift and then one mirroring, either of which may do nothing.

    Args:
        parts: What the steps do, a `Shift`, a `Mirror`, or None for anything else.

    Returns:
        None where the chain is not that.
    """
    kinds = [type(part) for part in parts]
    if kinds == [Shift, Mirror]:
        return parts[0], parts[1]
    if kinds == [Shift]:
        return parts[0], Mirror(0, 0)
    if kinds == [Mirror]:
        return Shift(0, 0), parts[0]
    return None


def gathered(
    array: NDArray[Any],
    rows: NDArray[np.int64],
    positions: NDArray[np.int64],
    epoch: int,
    shift: Shift,
    mirror: Mirror,
    *,
    allocate: Callable[[int], Any] | None,
) -> NDArray[Any]:
    """Rows of [N, H, W, ...], shifted and mirrored, in the array's own type.

    Args:
        array: All images, in one piece.
        rows: Those that are gathered, int64 [n], within 0 .. N - 1.
        positions: Positions in the epoch, int64 [n].
        epoch: The epoch.
        shift: What is done first.
        mirror: What is done then.
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
    apart = np.empty(min(most, len(rows)) * size if mirror.below else 0, np.uint8)
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
            shift.key & _MASK64,
            shift.padding,
            mirror.key & _MASK64,
            mirror.below,
            (height, width, pixel),
        )
        if count:
            tall = apart[: count * size].reshape(-1, width, pixel)
            cv2.flip(tall, 1, dst=tall)
            compiled.scatter(apart, to, mirrored[:count], size)
    return out.view(array.dtype).reshape(len(rows), *array.shape[1:])
