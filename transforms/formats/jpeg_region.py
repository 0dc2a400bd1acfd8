"""The part of a JPEG that holds a box: the decoder then does less, and the pixels stay the same.

For a decoder of whole images a part is a smaller JPEG. Two ways lead there. In any baseline file
the frame header's height can be lowered, so that rows below are left out. A file whose restart
markers stand at regular places gives the touched intervals alone, with the markers numbered anew.
For a decoder of regions it is a region, with what is interpolated at its edges.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from transforms.formats.header import JpegScan
from transforms.formats.jpeg_tiles import find_ends

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from datasets.pending_image import Box

# The interpolation of chroma looks one sample, which is two pixels, over the edge.
_CONTEXT = 2
# Narrower images are interpolated in another way by libjpeg (jdsample.c).
LEAST_WIDTH = 8
_END_OF_IMAGE = b"\xff\xd9"
_MARKER_BYTES = 2


class JpegPart(NamedTuple):
    """A JPEG of a part of an image.

    Attributes:
        file: Gives the file. What it would only copy is copied where it is decoded, and not before.
        width: Its columns.
        height: Its rows.
        left: Column of the whole image at which it begins.
        top: Row of the whole image at which it begins.
        exhaustive: All of its entropy data belongs to its pixels. Otherwise bytes are left
            over, about which the decoder complains.
    """

    file: Callable[[], bytes | bytearray]
    width: int
    height: int
    left: int
    top: int
    exhaustive: bool


def cut_part(data: bytes, scan: JpegScan, box: Box) -> JpegPart | None:
    """Cut out what a box needs.

    Args:
        data: The file.
        scan: How its pixels lie.
        box: The pixels that are wanted, within the image.

    Returns:
        The part; None where nothing is gained, or where the file is unlike what it says, so
        that it is for the whole decoding to judge.
    """
    return _cut_tiles(data, scan, box) if scan.restart_interval else _cut_rows(data, scan, box)


def region_around(scan: JpegScan, box: Box, factor: int) -> Box | None:
    """What a decoder of regions has to decode for a box.

    Args:
        scan: How the pixels lie.
        box: The pixels that are wanted, within the image.
        factor: By how much both sides are made smaller in decoding.

    Returns:
        In the smaller pixels, x_min at the border of a unit; None for all of them, and where
        there are so few that nothing is gained.
    """
    width, height = -(-scan.width // factor), -(-scan.height // factor)
    if width < LEAST_WIDTH:
        return None
    unit = scan.unit_width // factor
    left = max(0, box[0] // factor - _CONTEXT) // unit * unit
    right = min(width, -(-box[2] // factor) + _CONTEXT)
    if right - left < LEAST_WIDTH:
        left = max(0, right - LEAST_WIDTH) // unit * unit
        right = min(width, max(right, left + LEAST_WIDTH))
    # The decoder knows the rows above and below itself. At the last ones it goes to the end, so
    # that it sees how the file ends.
    top, bottom = box[1] // factor, -(-box[3] // factor)
    if bottom + _CONTEXT >= height:
        bottom = height
    region = left, top, right, bottom
    return region if region != (0, 0, width, height) else None


def is_tiled(scan: JpegScan) -> bool:
    """Whether its restart markers stand at regular places."""
    return scan.restart_interval > 0 and _grid(scan) is not None


def _grid(scan: JpegScan) -> tuple[int, int] | None:
    """Tiles in a row of them, and rows of units in a tile."""
    units, interval = -(-scan.width // scan.unit_width), scan.restart_interval
    if units % interval == 0:
        return units // interval, 1
    return (1, interval // units) if interval % units == 0 else None


def _cut_rows(data: bytes, scan: JpegScan, box: Box) -> JpegPart | None:
    height = box[3] + _CONTEXT
    if height >= scan.height:
        return None
    file = functools.partial(_lowered, data, scan.frame_at, height)
    return JpegPart(file, scan.width, height, 0, 0, exhaustive=False)


def _lowered(data: bytes, frame_at: int, height: int) -> bytearray:
    """A file whose frame header says another height."""
    part = bytearray(data)
    struct.pack_into(">H", part, frame_at + 5, height)
    return part


def _cut_tiles(data: bytes, scan: JpegScan, box: Box) -> JpegPart | None:
    import numpy as np

    grid = _grid(scan)
    if grid is None:
        return None
    columns, tile_rows = grid
    units = -(-scan.width // scan.unit_width)
    tile_width, tile_height = units // columns * scan.unit_width, tile_rows * scan.unit_height
    rows = -(-scan.height // tile_height)
    first_column, last_column = _tiles(box[0], box[2], tile_width, columns)
    first_row, last_row = _tiles(box[1], box[3], tile_height, rows)
    left, top = first_column * tile_width, first_row * tile_height
    if scan.width - left < LEAST_WIDTH and first_column:
        first_column -= 1
        left -= tile_width
    width = min(scan.width, (last_column + 1) * tile_width) - left
    height = min(scan.height, (last_row + 1) * tile_height) - top
    if width < LEAST_WIDTH < scan.width or (width, height) == (scan.width, scan.height):
        return None
    bounds = _bounds(data, scan, columns * rows)
    if bounds is None:
        return None

    touched = np.s_[first_row : last_row + 1, first_column : last_column + 1]
    # In each row of tiles those that are wanted lie in one piece, from behind one marker to
    # behind another.
    first, last = first_row * columns, last_row * columns + 1
    before = bounds[first + first_column : last + first_column : columns]
    behind = bounds[first + last_column + 1 : last + last_column + 1 : columns]
    bytes_of = memoryview(data)
    pieces = [bytes_of[: scan.data_at]]
    pieces += [
        bytes_of[i + _MARKER_BYTES : j + _MARKER_BYTES]
        for i, j in zip(before.tolist(), behind.tolist(), strict=True)
    ]
    part = bytearray().join(pieces)
    # How far each piece is from where it was.
    moved = np.add.accumulate(behind - before)
    moved -= behind
    moved += scan.data_at - _MARKER_BYTES
    markers = bounds[1:].reshape(rows, columns)[touched] + moved[:, None]
    numbers = _restart_markers(columns * rows).reshape(rows, columns)[touched]
    ends = (last_row, last_column) == (rows - 1, columns - 1)
    if not _renumber(part, markers, numbers, ends=ends):
        return None
    struct.pack_into(">HH", part, scan.frame_at + 5, height, width)
    return JpegPart(lambda: part, width, height, left, top, exhaustive=True)


def _tiles(start: int, stop: int, size: int, count: int) -> tuple[int, int]:
    """First and last tile that the pixels `start` .. `stop` - 1 and their context touch."""
    return max(0, start - _CONTEXT) // size, min(count - 1, (stop + _CONTEXT - 1) // size)


def _bounds(data: bytes, scan: JpegScan, count: int) -> NDArray[np.int64] | None:
    """Offsets of the markers between `count` intervals, int64 [count + 1].

    The first one, where there is no marker, is before the data; the last one ends the image.
    """
    import numpy as np

    bounds = np.empty(count + 1, np.int64)
    bounds[0] = scan.data_at - _MARKER_BYTES
    if scan.tile_lengths is not None:
        lengths = np.frombuffer(scan.tile_lengths, ">u2")
        if len(lengths) == count:
            np.add(lengths, _MARKER_BYTES, out=bounds[1:], dtype=np.int64)
            np.add.accumulate(bounds, out=bounds)
            return bounds if bounds[-1] + _MARKER_BYTES <= len(data) else None
    found = find_ends(data, scan.data_at)
    if found is None or len(found) != count:
        return None
    bounds[1:] = found
    return bounds


def _restart_markers(count: int) -> NDArray[np.uint16]:
    """The markers behind the first `count` intervals, as they lie in a file.

    Returns:
        Little-endian uint16 [count], read-only.
    """
    return _many_restart_markers(1 << count.bit_length())[:count]


@functools.cache
def _many_restart_markers(count: int) -> NDArray[np.uint16]:
    import numpy as np

    markers = (0xD0 + (np.arange(count) & 7) << 8 | 0xFF).astype("<u2")
    markers.flags.writeable = False
    return markers


def _renumber(
    part: bytearray, at: NDArray[np.int64], numbers: NDArray[np.uint16], *, ends: bool
) -> bool:
    """Number the markers at `at` from 0 on, and end the image with the last of them.

    Args:
        part: A JPEG, whose last marker is the last of its bytes.
        at: Where the markers are, int64 [rows, columns].
        numbers: What they are to be, uint16 [rows, columns].
        ends: Whether the last one ends the image already.

    Returns:
        Whether they are what they are to be. If they are not, nothing is changed.
    """
    import numpy as np

    # Two bytes from every byte on: a marker is read, compared and written as one number.
    pairs = np.ndarray((len(part) - 1,), "<u2", part, strides=(1,))
    expected = numbers.tobytes()
    if ends:
        expected = expected[:-_MARKER_BYTES] + _END_OF_IMAGE
    if pairs[at].tobytes() != expected:
        return False
    pairs[at] = _restart_markers(at.size).reshape(at.shape)
    part[-_MARKER_BYTES:] = _END_OF_IMAGE
    return True
