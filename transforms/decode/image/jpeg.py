"""Decode JPEG bytes, all or only around a box; raise on damage.

There are three ways to decode less. TurboJPEG decodes a region of any baseline file. Without
TurboJPEG, a lower height in the frame header skips the rows below. With regular restart markers,
the touched intervals alone form a smaller JPEG, with the markers renumbered.
"""

from __future__ import annotations

import functools
import re
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Box, Part, RecordError
from penstock.core.user_errors import is_trouble
from penstock.transforms.decode.image.header import Header, JpegScan
from penstock.transforms.decode.image.jpeg_tiles import find_ends
from penstock.transforms.decode.image.pillow import decode_picture, open_header
from penstock.transforms.decode.image.pixels import CHANNELS, convert
from penstock.transforms.decode.image.turbojpeg import region_decoder

Image = NDArray[np.uint8]

_COLORSPACE = {"RGB": "RGB", "L": "GRAY", "RGBA": "RGBA"}
# Messages of simplejpeg about valid files that it cannot read.
_REFUSALS = ("Could not determine subsampling", "Unsupported", "not supported", "not implemented")
# Its messages about markers among the pixels, which a baseline file of one scan cannot have.
_STRAY_MARKERS = ("Unsupported marker type", "Unsupported JPEG process")
_END_OF_IMAGE = b"\xff\xd9"
_MARKER_BYTES = 2
_EXTRANEOUS = re.compile(r"(\d+) extraneous bytes before marker 0xd9")
# Chroma interpolation reads one sample, that is two pixels, beyond the edge.
_CONTEXT = 2
# libjpeg interpolates narrower images differently (jdsample.c).
_LEAST_WIDTH = 8


def decode_part(
    data: bytes, header: Header, mode: str, box: Box | None = None, factor: int = 1
) -> Part:
    """Decode a box or everything, with both sides divided by a factor, rounded up.

    Smaller pixels come from DCT scaling, which transforms only the low frequencies (libjpeg's
    ``scale_denom``). If the decoder complains about a part, the whole
    image is decoded and decides whether the file is damaged.

    Args:
        data: The file.
        header: Its header.
        mode: ``RGB``, ``L`` or ``RGBA``.
        box: A box in pixels of the full image; None for all of it.
        factor: 1, 2, 4 or 8.

    Returns:
        The pixels, and the column and row of the smaller image at which they begin.

    Raises:
        RecordError: The file is damaged.
    """
    if box is not None and header.scan is not None:
        if factor > 1:
            # Chroma is interpolated between smaller pixels, so the context grows by the factor.
            context = 2 * factor
            box = (
                max(0, box[0] - context),
                max(0, box[1] - context),
                min(header.width, box[2] + context),
                min(header.height, box[3] + context),
            )
        if (part := _decode_around(data, header.scan, mode, box, factor)) is not None:
            return part
    return decode_whole(data, header, mode, factor=factor), 0, 0


def _decode_around(data: bytes, scan: JpegScan, mode: str, box: Box, factor: int) -> Part | None:
    """Decode a part; return None if this saves nothing or the decoder complains."""
    regions = region_decoder()
    if regions is not None and not (scan.restart_interval and _grid(scan)):
        region = region_around(scan, box, factor)
        # The decoder stops below the region, so it would not notice a truncated file.
        if region is None or data.rfind(_END_OF_IMAGE, scan.data_at) < 0:
            return None
        found = regions.decode(data, mode, region, factor)
        return None if found is None else (found, region[0], region[1])
    part = cut_part(data, scan, box)
    if part is None or part.width < _LEAST_WIDTH * factor:
        return None
    image = _buffer(part.height, part.width, mode, factor)
    try:
        _decode_into(image, part.file, mode, factor)
    except ValueError as error:
        # simplejpeg reports the first warning, so extraneous bytes hide no other.
        if part.exhaustive or not _EXTRANEOUS.search(str(error)):
            return None
    return image, part.left // factor, part.top // factor


def decode_whole(data: bytes, header: Header, mode: str, *, factor: int = 1) -> Image:
    """Decode everything, and drop the padding."""
    image = _decode_stored(data, header, mode, factor)
    if not header.padding:
        return image
    return np.ascontiguousarray(image[:, : -(-header.width // factor)])


def _decode_stored(data: bytes, header: Header, mode: str, factor: int) -> Image:
    """Decode strictly: unusual files go to Pillow, damaged files raise."""
    columns = header.width + header.padding
    if header.components == 4 and mode == "L":  # CMYK becomes grey by way of RGB
        return convert(_decode_stored(data, header, "RGB", factor), "L")
    image = _buffer(header.height, columns, mode, factor)
    try:
        # The buffer keeps its pixels when the decoder complains after the last of them.
        _decode_into(image, data, mode, factor)
    except ValueError as error:
        if is_trouble(error):
            raise MemoryError(str(error)) from None
        cause = str(error)
        extraneous = _EXTRANEOUS.search(cause)
        if extraneous and int(extraneous[1]) <= max(64, len(data) // 64):
            # Some cameras write padding after the pixels. A larger number of bytes means that a
            # damaged header hides pixels.
            return image
        stray = header.scan is not None and cause.startswith(_STRAY_MARKERS)
        if not stray and any(refusal in cause for refusal in _REFUSALS):
            return _smaller(_decode_unusual(data, mode), image.shape)
        raise RecordError(f"damaged JPEG: {cause}") from None
    return image


def _buffer(height: int, width: int, mode: str, factor: int) -> Image:
    return np.empty((-(-height // factor), -(-width // factor), CHANNELS[mode]), np.uint8)


def _decode_into(image: Image, data: bytes | bytearray, mode: str, factor: int) -> None:
    """Decode into an array of `_buffer`."""
    import simplejpeg

    # The decoder picks the smallest scale with at least this many pixels.
    least = {"min_height": image.shape[0], "min_width": image.shape[1]} if factor > 1 else {}
    simplejpeg.decode_jpeg(data, _COLORSPACE[mode], buffer=image.reshape(-1), **least)


def _smaller(image: Image, shape: tuple[int, ...]) -> Image:
    import cv2

    if image.shape == shape:
        return image
    small = cv2.resize(image, shape[1::-1], interpolation=cv2.INTER_AREA)
    return small.reshape(shape)


def _decode_unusual(data: bytes, mode: str) -> Image:
    """Decode with Pillow, and detect missing pixels, which Pillow does not report.

    If the pixels end early, the decoder reads the bytes before the end marker. Extra bytes there
    then change the pixels, but not in a complete file.
    """
    end = data.rfind(_END_OF_IMAGE)
    if end < 0:
        raise RecordError("truncated JPEG: the end marker is missing")
    image = decode_picture(open_header(data, "JPEG"), alpha=False)
    probe = data[:end] + b"\x55" * 256 + data[end:]
    if not np.array_equal(image, decode_picture(open_header(probe, "JPEG"), alpha=False)):
        raise RecordError("damaged JPEG: its pixels end before the image does")
    return convert(image, mode)


class JpegPart(NamedTuple):
    """A JPEG of a part of an image.

    Attributes:
        file: The file.
        width: Its columns.
        height: Its rows.
        left: Its first column in the whole image.
        top: Its first row in the whole image.
        exhaustive: Whether its pixels use all entropy data; the decoder warns about extra bytes.
    """

    file: bytearray
    width: int
    height: int
    left: int
    top: int
    exhaustive: bool


def cut_part(data: bytes, scan: JpegScan, box: Box) -> JpegPart | None:
    """Cut out a box as a JPEG of its own.

    The result is None if this saves nothing, or if the file contradicts its own header; decoding
    the whole image then reports the damage.
    """
    return _cut_tiles(data, scan, box) if scan.restart_interval else _cut_rows(data, scan, box)


def region_around(scan: JpegScan, box: Box, factor: int) -> Box | None:
    """Return the region to decode for a box, in pixels of the image shrunk by a factor.

    x_min is at the border of a unit. The result is None to decode the whole image, also if it is
    tiny.
    """
    width, height = -(-scan.width // factor), -(-scan.height // factor)
    if width < _LEAST_WIDTH:
        return None
    unit = scan.unit_width // factor
    left = max(0, box[0] // factor - _CONTEXT) // unit * unit
    right = min(width, -(-box[2] // factor) + _CONTEXT)
    if right - left < _LEAST_WIDTH:
        left = max(0, right - _LEAST_WIDTH) // unit * unit
        right = min(width, max(right, left + _LEAST_WIDTH))
    # The decoder adds the rows above and below itself. Close to the last row, decode to the end,
    # so that the decoder checks the end of the file.
    top, bottom = box[1] // factor, -(-box[3] // factor)
    if bottom + _CONTEXT >= height:
        bottom = height
    region = left, top, right, bottom
    return region if region != (0, 0, width, height) else None


def _grid(scan: JpegScan) -> tuple[int, int] | None:
    """Return tiles in a row of tiles, and rows of units in a tile."""
    units, interval = -(-scan.width // scan.unit_width), scan.restart_interval
    if units % interval == 0:
        return units // interval, 1
    return (1, interval // units) if interval % units == 0 else None


def _cut_rows(data: bytes, scan: JpegScan, box: Box) -> JpegPart | None:
    """Lower the height in the frame header."""
    height = box[3] + _CONTEXT
    if height >= scan.height:
        return None
    file = bytearray(data)
    struct.pack_into(">H", file, scan.frame_at + 5, height)
    return JpegPart(file, scan.width, height, 0, 0, exhaustive=False)


def _cut_tiles(data: bytes, scan: JpegScan, box: Box) -> JpegPart | None:
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
    if scan.width - left < _LEAST_WIDTH and first_column:
        first_column -= 1
        left -= tile_width
    width = min(scan.width, (last_column + 1) * tile_width) - left
    height = min(scan.height, (last_row + 1) * tile_height) - top
    if width < _LEAST_WIDTH < scan.width or (width, height) == (scan.width, scan.height):
        return None
    bounds = _bounds(data, scan, columns * rows)
    if bounds is None:
        return None

    touched = np.s_[first_row : last_row + 1, first_column : last_column + 1]
    # In each row of tiles, the touched tiles are contiguous, from the end of one marker to the
    # end of another.
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
    # Offset of each piece in the part minus its offset in the file.
    moved = np.add.accumulate(behind - before)
    moved -= behind
    moved += scan.data_at - _MARKER_BYTES
    markers = bounds[1:].reshape(rows, columns)[touched] + moved[:, None]
    numbers = _restart_markers(columns * rows).reshape(rows, columns)[touched]
    ends = (last_row, last_column) == (rows - 1, columns - 1)
    if not _renumber(part, markers, numbers, ends=ends):
        return None
    struct.pack_into(">HH", part, scan.frame_at + 5, height, width)
    return JpegPart(part, width, height, left, top, exhaustive=True)


def _tiles(start: int, stop: int, size: int, count: int) -> tuple[int, int]:
    """Return first and last tile that touch the pixels `start` .. `stop` - 1 and their context."""
    return max(0, start - _CONTEXT) // size, min(count - 1, (stop + _CONTEXT - 1) // size)


def _bounds(data: bytes, scan: JpegScan, count: int) -> NDArray[np.int64] | None:
    """Return the offsets of the markers around `count` intervals, int64 [count + 1].

    The first offset is virtual, before the data; the last is the end of the image.
    """
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
    """Return the first `count` restart markers, little-endian uint16 [count], read-only."""
    return _many_restart_markers(1 << count.bit_length())[:count]


@functools.cache
def _many_restart_markers(count: int) -> NDArray[np.uint16]:
    markers = (0xD0 + (np.arange(count) & 7) << 8 | 0xFF).astype("<u2")
    markers.flags.writeable = False
    return markers


def _renumber(
    part: bytearray, at: NDArray[np.int64], numbers: NDArray[np.uint16], *, ends: bool
) -> bool:
    """Renumber the markers at `at` from 0, and turn the last one into the end of the image.

    Return False, and change nothing, if the markers are not the expected `numbers`. With `ends`,
    the last marker is already the end of the image.
    """
    # Overlapping pairs of bytes, so that a marker is read and written as one number.
    pairs = np.ndarray((len(part) - 1,), "<u2", part, strides=(1,))
    expected = numbers.tobytes()
    if ends:
        expected = expected[:-_MARKER_BYTES] + _END_OF_IMAGE
    if pairs[at].tobytes() != expected:
        return False
    pairs[at] = _restart_markers(at.size).reshape(at.shape)
    part[-_MARKER_BYTES:] = _END_OF_IMAGE
    return True
