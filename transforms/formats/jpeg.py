"""JPEG headers (ITU-T T.81, annex B)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from transforms.formats.exif import read_orientation
from transforms.formats.header import Header, JpegScan
from transforms.formats.jpeg_overviews import Overview, read_overviews
from transforms.formats.jpeg_tiles import TILES_MARKER, TileTable, read_table

_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BASELINE = 0xC0
_START_OF_SCAN = 0xDA
_END_OF_IMAGE = 0xD9
_RESTART_INTERVAL = 0xDD
_APP1 = 0xE1
# Markers without a length behind them, fill bytes among them.
_NO_SEGMENT = frozenset(range(0xD0, 0xD8)) | {0x01, 0xFF, _END_OF_IMAGE}
_TELLING = _START_OF_FRAME | {_APP1, _RESTART_INTERVAL, TILES_MARKER}


@dataclass(slots=True)
class _Found:
    """What the segments before the first scan say."""

    frame: tuple[int, int, int, int] | None = None
    frame_at: int = 0
    baseline: bool = False
    orientation: int | None = None
    restart_interval: int = 0
    table: TileTable | None = None
    overviews: tuple[Overview, ...] = ()


def read_header(data: bytes) -> Header:
    """Read the segments up to the first scan.

    Args:
        data: A file that begins with the marker of a JPEG.

    Raises:
        ValueError: The header is cut short or makes no sense.
    """
    found = _Found()
    at, size = 2, len(data)
    # A photograph has some ten segments, of which few say how its pixels lie: no call for the rest.
    while True:
        if at + 4 > size:
            raise ValueError("truncated JPEG: it ends within its header")
        if data[at] != 0xFF:
            raise ValueError(f"damaged JPEG: no marker at byte {at}, where a segment begins")
        marker = data[at + 1]
        if marker in _NO_SEGMENT:
            if marker == _END_OF_IMAGE:
                raise ValueError("damaged JPEG: it ends before any pixels")
            at += 1 if marker == 0xFF else 2
            continue
        length = data[at + 2] << 8 | data[at + 3]
        if length < 2 or at + 2 + length > size:
            raise ValueError("truncated JPEG: it ends within its header")
        if marker == _START_OF_SCAN:
            break
        if marker in _TELLING:
            _read_segment(found, data, marker, at, length)
        at += 2 + length
    if found.frame is None:
        raise ValueError("damaged JPEG: a scan without a frame header")
    precision, height, width, components = found.frame
    if precision != 8:
        raise ValueError(f"{precision}-bit JPEG is not supported; convert it to 8 bits")
    padding = 0
    if found.table is not None:
        if width < found.table.width or height != found.table.height:
            raise ValueError("damaged JPEG: its table of tiles is that of another image")
        padding = width - found.table.width
        width = found.table.width
    if any(offset + size_bytes > size for _, offset, size_bytes in found.overviews):
        raise ValueError("truncated JPEG: it ends before its overviews do")
    return Header(
        "JPEG",
        width,
        height,
        components,
        found.orientation or 1,
        padding=padding,
        scan=_read_scan(found, data, at, at + 2 + length),
        overviews=found.overviews,
    )


def _read_segment(found: _Found, data: bytes, marker: int, at: int, length: int) -> None:
    body = at + 4
    if marker in _START_OF_FRAME and found.frame is None:
        if length < 8:
            raise ValueError("damaged JPEG: its frame header is too short")
        found.frame = struct.unpack_from(">BHHB", data, body)
        found.frame_at = at
        found.baseline = marker == _BASELINE and length == 8 + 3 * found.frame[3]
    elif marker == _APP1 and found.orientation is None and data[body : body + 6] == b"Exif\0\0":
        found.orientation = read_orientation(data[body + 6 : at + 2 + length])
    elif marker == _RESTART_INTERVAL and length == 4:
        (found.restart_interval,) = struct.unpack_from(">H", data, body)
    elif marker == TILES_MARKER:
        found.table = found.table or read_table(data[body : at + 2 + length])
        found.overviews = found.overviews or read_overviews(data[body : at + 2 + length]) or ()


def _read_scan(found: _Found, data: bytes, scan_at: int, data_at: int) -> JpegScan | None:
    """How the pixels lie in a baseline file of one scan; None for every other kind."""
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
