"""BMP headers (BITMAPFILEHEADER, then BITMAPCOREHEADER or BITMAPINFOHEADER and later)."""

from __future__ import annotations

import struct

from transforms.formats.header import Header

_UNCOMPRESSED = (0, 3, 6)  # BI_RGB, BI_BITFIELDS, BI_ALPHABITFIELDS


def read_header(data: bytes) -> Header:
    """Read the header and check that the pixels it promises are there.

    Args:
        data: A file that begins with ``BM``.

    Raises:
        ValueError: The file is cut short or makes no sense.
    """
    try:
        pixels_at, header_size = struct.unpack_from("<II", data, 10)
        if header_size == 12:
            width, height, _, bits = struct.unpack_from("<HHHH", data, 18)
            compression = needed = 0
        else:
            width, height, _, bits, compression, needed = struct.unpack_from("<iiHHII", data, 18)
    except struct.error:
        raise ValueError("truncated BMP: it ends within its header") from None
    height = abs(height)  # negative: the rows are stored from the top
    if compression in _UNCOMPRESSED:
        needed = (width * bits + 31) // 32 * 4 * height
    if pixels_at + needed > len(data):
        raise ValueError(f"truncated BMP: {len(data)} bytes of {pixels_at + needed}")
    return Header("BMP", width, height)
