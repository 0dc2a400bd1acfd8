"""Rows of a large array gathered, shifted and mirrored in one go: compiled by numba.

`gathered.compiled_rows` imports it, as numba comes with ``.[compiled]`` only. A function here gives
up the interpreter's lock once, where the same in NumPy takes some sixty calls that do, each of
which then waits for the loader's other threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

_WORD = np.uint64((1 << 32) - 1)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_HALF, _UNUSED = np.uint64(32), np.uint64(11)
_BLOCK = 64


def _compiled(signature: Any) -> Callable[[Any], Any]:
    """Compiles a function now, or takes what was compiled before and kept beside this file."""

    def compiled(function: Any) -> Any:
        options = {"nogil": True, "error_model": "numpy"}
        try:
            return numba.njit(signature, cache=True, **options)(function)
        except Exception:  # no folder can be written to, or what was kept there is damaged
            return numba.njit(signature, **options)(function)

    return compiled


_inlined = numba.njit(inline="always")


@_inlined
def _mixed(word: Any) -> Any:
    word = (word ^ (word >> _SHIFTS[0])) * _FACTORS[0]
    word = (word ^ (word >> _SHIFTS[1])) * _FACTORS[1]
    return word ^ (word >> _SHIFTS[2])


@_inlined
def _word(key: Any, epoch: Any, position: Any) -> Any:
    """Compute `core.rng.words_at`, as uint64."""
    return _mixed(_mixed(key + epoch * _GOLDEN) + position * _GOLDEN)


@_inlined
def _copy_image(source: Any, start: int, image: Any) -> None:
    """Copy the bytes from `start` on, which may lie before the source or reach beyond it."""
    size, first = image.size, max(0, -start)
    last = min(size, source.size - start)
    if first == 0 and last == size:
        pixels = source[start : start + size]
        for at in range(size):
            image[at] = pixels[at]
    else:
        for at in range(size):
            image[at] = source[start + at] if first <= at < last else 0


@_inlined
def _clear_edges(image: Any, top: int, left: int, height: int, line: int, pixel: int) -> None:
    """Write zeros where a window at (top, left) of its image reaches beyond it."""
    first, last = min(height, max(0, -top)), max(0, min(height, height - top))
    for at in range(first * line):
        image[at] = 0
    for at in range(last * line, height * line):
        image[at] = 0
    begin, end = 0, 0
    if left < 0:
        end = min(line, -left * pixel)
    elif left > 0:
        begin, end = max(0, line - left * pixel), line
    for y in range(first, last):
        row = image[y * line : (y + 1) * line]
        for at in range(begin, end):
            row[at] = 0


_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_INTS = types.Array(types.int64, 1, "C", readonly=True)


@_compiled(
    types.int64(
        _BYTES, _INTS, types.uint8[::1], types.uint8[::1], types.int64[::1], _INTS, types.uint64,
        types.uint64, types.int64, types.uint64, types.uint64, types.UniTuple(types.int64, 3),
    )
)  # fmt: skip
def gather_shifted(
    source: NDArray[np.uint8],
    rows: NDArray[np.int64],
    out: NDArray[np.uint8],
    apart: NDArray[np.uint8],
    mirrored: NDArray[np.int64],
    positions: NDArray[np.int64],
    epoch: int,
    shift_key: int,
    padding: int,
    mirror_key: int,
    mirror_below: int,
    shape: tuple[int, int, int],
) -> int:
    """Gather images, each shifted by up to `padding` pixels, with zeros beyond its edges.

    Those that are to be mirrored are put apart, one behind the other, so that one call of a
    library can mirror all.

    Args:
        source: All images, uint8 [N * H * W * C].
        rows: Those that are gathered, int64 [n].
        out: Where they go, uint8 [n * H * W * C].
        apart: Where those go that are to be mirrored; of the same size.
        mirrored: Set to which of the n these are, int64 [n].
        positions: Positions in the epoch, int64 [n].
        epoch: The epoch.
        shift_key: Of `core.rng.batch_key`, modulo 2^64.
        padding: 0: nothing is shifted.
        mirror_key: As `shift_key`.
        mirror_below: What 53 bits of a row's word are compared with; 0: none is mirrored.
        shape: H, W and C.

    Returns:
        How many are to be mirrored.
    """
    height, width, pixel = shape
    line = width * pixel
    size = height * line
    places = np.uint64(2 * padding + 1)
    tops, lefts = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    goes_apart, to = np.empty(_BLOCK, np.bool_), np.empty(_BLOCK, np.int64)
    count = 0
    # A block is in the core's own cache when its edges are cleared. Copies alone follow each
    # other without a branch to guess, so that their reads overlap.
    for first in range(0, rows.size, _BLOCK):
        block = min(_BLOCK, rows.size - first)
        for at in range(block):
            position = np.uint64(positions[first + at])
            word = _word(shift_key, epoch, position)
            tops[at] = np.int64(((word & _WORD) * places) >> _HALF) - padding
            lefts[at] = np.int64(((word >> _HALF) * places) >> _HALF) - padding
            goes_apart[at] = (_word(mirror_key, epoch, position) >> _UNUSED) < mirror_below
            to[at] = (first + at) * size
            if goes_apart[at]:
                to[at] = count * size
                mirrored[count] = first + at
                count += 1
        for at in range(block):
            image = (apart if goes_apart[at] else out)[to[at] : to[at] + size]
            start = rows[first + at] * size + tops[at] * line + lefts[at] * pixel
            _copy_image(source, start, image)
        for at in range(block):
            image = (apart if goes_apart[at] else out)[to[at] : to[at] + size]
            _clear_edges(image, tops[at], lefts[at], height, line, pixel)
    return count


@_compiled(types.void(_BYTES, types.uint8[::1], _INTS, types.int64))
def scatter(
    apart: NDArray[np.uint8], out: NDArray[np.uint8], mirrored: NDArray[np.int64], size: int
) -> None:
    """Put images of `size` bytes that lie one behind the other where they belong in `out`.

    Args:
        apart: The images, uint8 [m * size].
        out: All of them, uint8 [n * size].
        mirrored: Which of the n each is, int64 [m].
        size: Bytes of one.
    """
    for number in range(mirrored.size):
        image, place = apart[number * size : (number + 1) * size], mirrored[number] * size
        to = out[place : place + size]
        for at in range(size):
            to[at] = image[at]
