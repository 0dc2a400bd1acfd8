"""Overviews: smaller copies of an image, whole JPEG files behind the end of its own.

Decoding a large photograph for a small crop costs its entropy data, whatever the scale of the
pixels; a copy of half, a quarter or an eighth of the size has less of it. A segment of the file
tells where they are. A reader that does not know it stops at the end marker before them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

# Those of DCT scaling (libjpeg-turbo's fast ones), so that the sizes are the same in both ways.
FACTORS = (2, 4, 8)
_NAME = b"Penstock overviews\0"
_MARKER = 0xE9
_ENTRY = struct.Struct(">BII")
_CHECKSUM = struct.Struct(">I")

Overview = tuple[int, int, int]
"""Factor by which both sides are smaller (rounded up), offset in the file, length in bytes."""


def read_overviews(body: bytes) -> tuple[Overview, ...] | None:
    """Read the segment's body.

    Returns:
        The overviews; None for another segment.

    Raises:
        ValueError: The segment is damaged.
    """
    if not body.startswith(_NAME):
        return None
    entries = body[len(_NAME) : -_CHECKSUM.size]
    (checksum,) = _CHECKSUM.unpack_from(body, len(body) - _CHECKSUM.size)
    if len(entries) % _ENTRY.size or checksum != zlib.crc32(body[: -_CHECKSUM.size]):
        raise ValueError("damaged JPEG: the checksum of its table of overviews does not fit")
    return tuple(_ENTRY.iter_unpack(entries))


def append_overviews(data: bytes, overviews: Sequence[tuple[int, bytes]]) -> bytes:
    """A JPEG with overviews behind it.

    Args:
        data: The file.
        overviews: Factor and file of each.
    """
    body_bytes = len(_NAME) + _ENTRY.size * len(overviews) + _CHECKSUM.size
    at = len(data) + 4 + body_bytes
    body = _NAME
    for factor, overview in overviews:
        body += _ENTRY.pack(factor, at, len(overview))
        at += len(overview)
    body += _CHECKSUM.pack(zlib.crc32(body))
    segment = struct.pack(">BBH", 0xFF, _MARKER, body_bytes + 2) + body
    return b"".join([data[:2], segment, data[2:], *(overview for _, overview in overviews)])
