"""WebP headers (RFC 9649, section 2)."""

from __future__ import annotations

import struct

from transforms.formats.exif import read_orientation
from transforms.formats.header import Header


def read_header(data: bytes) -> Header:
    """Read the header and check that every chunk is there whole.

    Args:
        data: A file that begins with ``RIFF....WEBP``.

    Raises:
        ValueError: The file is cut short or makes no sense.
    """
    (riff_size,) = struct.unpack_from("<I", data, 4)
    if riff_size + 8 > len(data):
        raise ValueError(f"truncated WebP: {len(data)} bytes of {riff_size + 8}")
    size: tuple[int, int] | None = None
    orientation = 1
    at = 12
    while at + 8 <= riff_size + 8:
        kind, length = struct.unpack_from("<4sI", data, at)
        body = data[at + 8 : at + 8 + length]
        if len(body) < length:
            raise ValueError(f"truncated WebP: it ends within its {kind!r} chunk")
        size = size or _canvas(kind, body)
        if kind == b"EXIF":
            orientation = read_orientation(body[6:] if body[:6] == b"Exif\0\0" else body)
        at += 8 + length + length % 2
    if size is None:
        raise ValueError("damaged WebP: it holds no image")
    return Header("WebP", *size, orientation=orientation)


def _canvas(kind: bytes, body: bytes) -> tuple[int, int] | None:
    """Width and height, from the chunks that give them."""
    if kind == b"VP8X" and len(body) >= 10:
        return (
            1 + int.from_bytes(body[4:7], "little"),
            1 + int.from_bytes(body[7:10], "little"),
        )
    if kind == b"VP8L" and len(body) >= 5 and body[0] == 0x2F:
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and len(body) >= 10 and body[3:6] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", body, 6)
        return width & 0x3FFF, height & 0x3FFF
    return None
