"""JPEG headers (ITU-T T.81, annex B)."""

from __future__ import annotations

import struct

from transforms.formats.exif import read_orientation
from transforms.formats.header import Header

_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN = 0xDA
_END_OF_IMAGE = 0xD9
_APP1 = 0xE1
_ALONE = frozenset(range(0xD0, 0xD8)) | {0x01}


def read_header(data: bytes) -> Header:
    """Read the segments up to the first scan.

    Args:
        data: A file that begins with the marker of a JPEG.

    Raises:
        ValueError: The header is cut short or makes no sense.
    """
    frame: tuple[int, int, int, int] | None = None
    orientation: int | None = None
    at, size = 2, len(data)
    while True:
        if at + 4 > size:
            raise ValueError("truncated JPEG: it ends within its header")
        if data[at] != 0xFF:
            raise ValueError(f"damaged JPEG: no marker at byte {at}, where a segment begins")
        marker = data[at + 1]
        if marker == 0xFF or marker in _ALONE:
            at += 1 if marker == 0xFF else 2
            continue
        if marker == _END_OF_IMAGE:
            raise ValueError("damaged JPEG: it ends before any pixels")
        (length,) = struct.unpack_from(">H", data, at + 2)
        if length < 2 or at + 2 + length > size:
            raise ValueError("truncated JPEG: it ends within its header")
        if marker == _START_OF_SCAN:
            break
        if marker in _START_OF_FRAME and frame is None:
            if length < 8:
                raise ValueError("damaged JPEG: its frame header is too short")
            frame = struct.unpack_from(">BHHB", data, at + 4)
        elif marker == _APP1 and orientation is None and data[at + 4 : at + 10] == b"Exif\0\0":
            orientation = read_orientation(data[at + 10 : at + 2 + length])
        at += 2 + length
    if frame is None:
        raise ValueError("damaged JPEG: a scan without a frame header")
    precision, height, width, components = frame
    if precision != 8:
        raise ValueError(f"{precision}-bit JPEG is not supported; convert it to 8 bits")
    return Header("JPEG", width, height, components, orientation or 1)
