"""Describe an image file before its pixels are decoded; read the header of a JPEG."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.sample import RecordError
from penstock.transforms.decode.image.jpeg_tiles import (
    TILES_MARKER,
    TileTable,
    read_table,
)

if TYPE_CHECKING:
    from PIL.Image import Image as Picture


class JpegScan(NamedTuple):
    """The layout of the pixels in a baseline JPEG of one scan.

    Attributes:
        frame_at: Offset of the frame header's marker.
        data_at: Offset of the first byte of entropy data.
        width: Columns as coded, including a tiled file's padding.
        height: Rows as coded.
        unit_width: Columns of the smallest unit that is coded together (MCU), in pixels.
        unit_height: Its rows.
        restart_interval: Units between two restart markers; 0 without markers.
        tile_lengths: Bytes between the markers, big-endian uint16 each, if the file lists them.
    """

    frame_at: int
    data_at: int
    width: int
    height: int
    unit_width: int
    unit_height: int
    restart_interval: int
    tile_lengths: bytes | None


class Header(NamedTuple):
    """An image file's header.

    Attributes:
        format: ``JPEG``, or the name of another format.
        width: Columns of pixels as stored, before any rotation.
        height: Rows of pixels as stored, before any rotation.
        orientation: The EXIF orientation, 1 .. 8; 1 is upright.
        picture: Pillow's image, not yet decoded; None for a JPEG.
        components: Values per pixel of a JPEG as stored.
        padding: Columns on the right of a JPEG's stored pixels that are not part of the image.
        scan: Layout of a JPEG of which parts can be decoded, else None.
    """

    format: str
    width: int
    height: int
    orientation: int = 1
    picture: Picture | None = None
    components: int = 0
    padding: int = 0
    scan: JpegScan | None = None


_ORIENTATION = 0x0112
_SHORT = 3


def read_orientation(block: bytes | memoryview) -> int:
    """Read the orientation, 1 .. 8, in an EXIF block (CIPA DC-008-2019, section 4.6.2).

    The block starts at its byte-order mark. An invalid block means 1, upright.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(bytes(block[:4]))
    if order is None:
        return 1
    try:
        (directory,) = struct.unpack_from(f"{order}I", block, 4)
        (count,) = struct.unpack_from(f"{order}H", block, directory)
        for entry in range(directory + 2, directory + 2 + 12 * count, 12):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", block, entry)
            if tag == _ORIENTATION:
                return value if kind == _SHORT and 1 <= value <= 8 else 1
    except struct.error:  # truncated block
        return 1
    return 1


_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BASELINE = 0xC0
_START_OF_SCAN = 0xDA
_END_OF_IMAGE = 0xD9
_RESTART_INTERVAL = 0xDD
_APP1 = 0xE1
# Markers without a length, and fill bytes.
_NO_SEGMENT = frozenset(range(0xD0, 0xD8)) | {0x01, 0xFF, _END_OF_IMAGE}
_TELLING = _START_OF_FRAME | {_APP1, _RESTART_INTERVAL, TILES_MARKER}


@dataclass(slots=True)
class _Found:
    """Facts gathered from the segments before the first scan."""

    frame: tuple[int, int, int, int] | None = None
    frame_at: int = 0
    baseline: bool = False
    orientation: int | None = None
    restart_interval: int = 0
    table: TileTable | None = None


def read_jpeg_header(data: bytes) -> Header:
    """Read the segments of a JPEG up to the first scan (ITU-T T.81, annex B)."""
    found = _Found()
    at, size = 2, len(data)
    # A photograph has some ten segments; calling a function only for the relevant ones is faster.
    while True:
        if at + 4 > size:
            raise RecordError("truncated JPEG: it ends within its header")
        if data[at] != 0xFF:
            raise RecordError(f"damaged JPEG: no marker at byte {at}, where a segment begins")
        marker = data[at + 1]
        if marker in _NO_SEGMENT:
            if marker == _END_OF_IMAGE:
                raise RecordError("damaged JPEG: it ends before any pixels")
            at += 1 if marker == 0xFF else 2
            continue
        length = data[at + 2] << 8 | data[at + 3]
        if length < 2 or at + 2 + length > size:
            raise RecordError("truncated JPEG: it ends within its header")
        if marker == _START_OF_SCAN:
            break
        if marker in _TELLING:
            _read_segment(found, data, marker, at, length)
        at += 2 + length
    if found.frame is None:
        raise RecordError("damaged JPEG: a scan without a frame header")
    precision, height, width, components = found.frame
    if precision != 8:
        raise RecordError(f"{precision}-bit JPEG is not supported; convert it to 8 bits")
    padding = 0
    if found.table is not None:
        if width < found.table.width or height != found.table.height:
            raise RecordError("damaged JPEG: its table of tiles is that of another image")
        padding = width - found.table.width
        width = found.table.width
    return Header(
        "JPEG",
        width,
        height,
        found.orientation or 1,
        components=components,
        padding=padding,
        scan=_read_scan(found, data, at, at + 2 + length),
    )


def _read_segment(found: _Found, data: bytes, marker: int, at: int, length: int) -> None:
    body = at + 4
    if marker in _START_OF_FRAME and found.frame is None:
        if length < 8:
            raise RecordError("damaged JPEG: its frame header is too short")
        found.frame = struct.unpack_from(">BHHB", data, body)
        found.frame_at = at
        found.baseline = marker == _BASELINE and length == 8 + 3 * found.frame[3]
    elif marker == _APP1 and found.orientation is None and data[body : body + 6] == b"Exif\0\0":
        found.orientation = read_orientation(data[body + 6 : at + 2 + length])
    elif marker == _RESTART_INTERVAL and length == 4:
        (found.restart_interval,) = struct.unpack_from(">H", data, body)
    elif marker == TILES_MARKER:
        found.table = found.table or read_table(data[body : at + 2 + length])


def _read_scan(found: _Found, data: bytes, scan_at: int, data_at: int) -> JpegScan | None:
    """Return the layout of a baseline file of one scan; None for every other kind."""
    assert found.frame is not None
    _, height, width, components = found.frame
    # In a sequential file the first scan is the only one if it has all components.
    if not found.baseline or components not in (1, 3) or data[scan_at + 4] != components:
        return None
    across = down = 1  # a lone component is not interleaved: its units are single blocks (A.2.2)
    if components == 3:
        factors_at = found.frame_at + 11
        first, second, third = data[factors_at : factors_at + 7 : 3]
        across = max(first >> 4, second >> 4, third >> 4)
        down = max(first & 15, second & 15, third & 15)
    if not across or not down:
        return None
    return JpegScan(
        frame_at=found.frame_at,
        data_at=data_at,
        width=width,
        height=height,
        unit_width=8 * across,
        unit_height=8 * down,
        restart_interval=found.restart_interval,
        tile_lengths=found.table.lengths if found.table else None,
    )
