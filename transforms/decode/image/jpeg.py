"""Decode JPEG bytes, all of them or those around a box; damage raises.

A box takes less in three ways. TurboJPEG decodes a region of any baseline file. Where it is not
there, the frame header's height is lowered, so that rows below are left out. A file whose restart
markers stand at regular places gives the touched intervals alone, with the markers numbered anew:
a smaller JPEG for the decoder of whole images.
"""

from __future__ import annotations

import functools
import re
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Box, Part, RecordError, smaller_box
from penstock.core.user_errors import is_trouble
from penstock.transforms.decode.image.header import Header, JpegScan, read_jpeg_header
from penstock.transforms.decode.image.jpeg_tiles import find_ends
from penstock.transforms.decode.image.pillow import decode_picture, open_header
from penstock.transforms.decode.image.pixels import CHANNELS, convert
from penstock.transforms.decode.image.turbojpeg import region_decoder

Image = NDArray[np.uint8]

_COLORSPACE = {"RGB": "RGB", "L": "GRAY", "RGBA": "RGBA"}
# What simplejpeg says of files that are whole but that it cannot read.
_REFUSALS = ("Could not determine subsampling", "Unsupported", "not supported", "not implemented")
# What it says of markers among the pixels, of which a baseline file of one scan has none.
_STRAY_MARKERS = ("Unsupported marker type", "Unsupported JPEG process")
_END_OF_IMAGE = b"\xff\xd9"
_MARKER_BYTES = 2
_EXTRANEOUS = re.compile(r"(\d+) extraneous bytes before marker 0xd9")
# The interpolation of chroma looks one sample, which is two pixels, over the edge.
_CONTEXT = 2
# Narrower images are interpolated in another way by libjpeg (jdsample.c).
_LEAST_WIDTH = 8


def decode_part(
    data: bytes, header: Header, mode: str, box: Box | None = None, factor: int = 1
) -> Part:
    """Decode what a box needs, or everything; both sides smaller by a factor, rounded up.

    An overview of that factor in the file is taken; else the pixels are those of DCT scaling,
    in which the decoder transforms the low frequencies alone (libjpeg's ``scale_denom``).
    Whatever the decoder says of a part, the whole image decides whether the file is damaged:
    it is decoded then, and what it forgives is forgiven.

    Args:
        data: The file.
        header: Its header.
        mode: ``RGB``, ``L`` or ``RGBA``.
        box: A box of the whole image, in its own pixels; None for all of it.
        factor: 1, 2, 4 or 8.

    Returns:
        The pixels, and the smaller column and row at which they begin.

    Raises:
        RecordError: The file is damaged.
    """
    if factor > 1 and (overview := _overview(data, header, factor)) is not None:
        smaller = smaller_box(box, factor) if box is not None else None
        return decode_part(overview, read_jpeg_header(overview), mode, smaller)
    if box is not None and header.scan is not None:
        if factor > 1:
            # Chroma is interpolated between smaller pixels, so its context is wider in whole ones.
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


def _overview(data: bytes, header: Header, factor: int) -> bytes | None:
    """Find the smaller copy of a factor behind the image."""
    for its_factor, offset, size_bytes in header.overviews:
        if its_factor == factor:
            overview = data[offset : offset + size_bytes]
            its_header = read_jpeg_header(overview)
            size = -(-header.width // factor), -(-header.height // factor)
            if (its_header.width, its_header.height) != size:
                raise RecordError("damaged JPEG: its overviews are those of another image")
            return overview
    return None


def _decode_around(data: bytes, scan: JpegScan, mode: str, box: Box, factor: int) -> Part | None:
    """Decode a part; None where nothing is gained, and where the decoder complains."""
    regions = region_decoder()
    if regions is not None and not (scan.restart_interval and _grid(scan)):
        region = region_around(scan, box, factor)
        # It stops below the region, and would not see that the file ends too early.
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
        # The first complaint is the one that is reported, so nothing hides behind this one.
        if part.exhaustive or not _EXTRANEOUS.search(str(error)):
            return None
    return image, part.left // factor, part.top // factor


def decode_whole(data: bytes, header: Header, mode: str, *, factor: int = 1) -> Image:
    """Decode everything, and leave out what pads the image."""
    image = _decode_stored(data, header, mode, factor)
    if not header.padding:
        return image
    return np.ascontiguousarray(image[:, : -(-header.width // factor)])


def _decode_stored(data: bytes, header: Header, mode: str, factor: int) -> Image:
    """Decode strictly; what is only unusual goes to another library, what is damaged raises."""
    columns = header.width + header.padding
    if header.components == 4 and mode == "L":  # CMYK has no grey of its own
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
            # Padding between the pixels and the end, which some cameras write. Much of it is
            # something else: pixels that a damaged header hides.
            return image
        stray = header.scan is not None and cause.startswith(_STRAY_MARKERS)
        if not stray and any(refusal in cause for refusal in _REFUSALS):
            return _smaller(_decode_unusual(data, mode), image.shape)
        raise RecordError(f"damaged JPEG: {cause}") from None
    return image


def _buffer(height: int, width: int, mode: str, factor: int) -> Image:
    return np.empty((-(-height // factor), -(-width // factor), CHANNELS[mode]), np.uint8)


def _decode_into(image: Image, data: bytes | bytearray, mode: str, factor: int) -> None:
    """Decode into a buffer of `_buffer`."""
    import simplejpeg

    # The decoder takes the smallest scale that has as many pixels as this.
    least = {"min_height": image.shape[0], "min_width": image.shape[1]} if factor > 1 else {}
    simplejpeg.decode_jpeg(data, _COLORSPACE[mode], buffer=image.reshape(-1), **least)


def _smaller(image: Image, shape: tuple[int, ...]) -> Image:
    import cv2

    if image.shape == shape:
        return image
    small = cv2.resize(image, shape[1::-1], interpolation=cv2.INTER_AREA)
    return small.reshape(shape)


def _decode_unusual(data: bytes, mode: str) -> Image:
    """Decode with Pillow, which keeps silent about missing pixels, and find them all the same.

    Where the pixels end early, the decoder reads on into whatever comes before the end
    marker. So bytes are put there: the pixels of a whole file do not change.
    """
    end = data.rfind(_END_OF_IMAGE)
    if end < 0:
        raise RecordError("truncated JPEG: it has no end marker")
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
        left: Column of the whole image at which it begins.
        top: Row of the whole image at which it begins.
        exhaustive: All of its entropy data belongs to its pixels. Otherwise bytes are left
            over, about which the decoder complains.
    """

    file: bytearray
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
    """Find the region that a decoder of regions has to decode for a box.

    Args:
        scan: How the pixels lie.
        box: The pixels that are wanted, within the image.
        factor: By how much both sides are made smaller in decoding.

    Returns:
        In the smaller pixels, x_min at the border of a unit; None for all of them, and where
        there are so few that nothing is gained.
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
    # The decoder knows the rows above and below itself. At the last ones it goes to the end, so
    # that it sees how the file ends.
    top, bottom = box[1] // factor, -(-box[3] // factor)
    if bottom + _CONTEXT >= height:
        bottom = height
    region = left, top, right, bottom
    return region if region != (0, 0, width, height) else None


def _grid(scan: JpegScan) -> tuple[int, int] | None:
    """Tiles in a row of them, and rows of units in a tile."""
    units, interval = -(-scan.width // scan.unit_width), scan.restart_interval
    if units % interval == 0:
        return units // interval, 1
    return (1, interval // units) if interval % units == 0 else None


def _cut_rows(data: bytes, scan: JpegScan, box: Box) -> JpegPart | None:
    """Lower the height that the frame header says."""
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
    return JpegPart(part, width, height, left, top, exhaustive=True)


def _tiles(start: int, stop: int, size: int, count: int) -> tuple[int, int]:
    """First and last tile that the pixels `start` .. `stop` - 1 and their context touch."""
    return max(0, start - _CONTEXT) // size, min(count - 1, (stop + _CONTEXT - 1) // size)


def _bounds(data: bytes, scan: JpegScan, count: int) -> NDArray[np.int64] | None:
    """Offsets of the markers between `count` intervals, int64 [count + 1].

    The first one, where there is no marker, is before the data; the last one ends the image.
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
    """The markers behind the first `count` intervals, as they lie in a file.

    Returns:
        Little-endian uint16 [count], read-only.
    """
    return _many_restart_markers(1 << count.bit_length())[:count]


@functools.cache
def _many_restart_markers(count: int) -> NDArray[np.uint16]:
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
