"""PNG headers and checksums (PNG specification, third edition, section 5)."""

from __future__ import annotations

import struct
from zlib import crc32

from transforms.formats.exif import read_orientation
from transforms.formats.header import Header

_COMPONENTS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def read_header(data: bytes) -> Header:
    """Read the header and check that every chunk is whole.

    Args:
        data: A file that begins with the signature of a PNG.

    Raises:
        ValueError: The file is cut short, or a checksum does not agree.
    """
    view = memoryview(data)
    width = height = colour = depth = 0
    orientation = 1
    transparent: int | None = None
    at, size, kind = 8, len(data), b""
    while kind != b"IEND":
        if at + 12 > size:
            raise ValueError("truncated PNG: it ends before its last chunk")
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + 8 + length
        if end + 4 > size:
            raise ValueError(f"truncated PNG: it ends within its {kind!r} chunk")
        (checksum,) = struct.unpack_from(">I", data, end)
        if crc32(view[at + 4 : end]) != checksum:
            raise ValueError(f"damaged PNG: the checksum of its {kind!r} chunk does not agree")
        if at == 8:
            if kind != b"IHDR" or length != 13:
                raise ValueError("damaged PNG: it does not begin with its header")
            width, height, depth, colour = struct.unpack_from(">IIBB", data, at + 8)
        elif kind == b"eXIf":
            orientation = read_orientation(view[at + 8 : end])
        elif kind == b"tRNS" and colour == 0 and length == 2:
            (transparent,) = struct.unpack_from(">H", data, at + 8)
        at = end + 4
    if transparent is not None and depth < 8:
        transparent *= 255 // ((1 << depth) - 1)  # the decoder widens such greys to 0 .. 255
    return Header(
        "PNG", width, height, _COMPONENTS.get(colour, 0), orientation, transparent_grey=transparent
    )
