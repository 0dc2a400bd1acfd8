"""The orientation in an EXIF block (CIPA DC-008-2019, section 4.6.2)."""

from __future__ import annotations

import struct

_ORIENTATION = 0x0112
_SHORT = 3


def read_orientation(block: bytes | memoryview) -> int:
    """The orientation that an EXIF block gives.

    A block that makes no sense says nothing about the pixels, so it is upright, not an error.

    Args:
        block: The block from its byte-order mark on (``II*`` or ``MM*``).

    Returns:
        1 .. 8; 1 where there is none.
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
    except struct.error:  # the block ends before what it promises
        return 1
    return 1
