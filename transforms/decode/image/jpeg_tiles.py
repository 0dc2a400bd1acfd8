"""Write tiled JPEG: a baseline file that restart markers cut into tiles of one size.

A restart marker ends a byte and resets all prediction (ITU-T T.81, section F.1.1.5), so the data
between two markers can be decoded alone. An application segment lists the lengths of the tiles
and the width of the image, which is padded on the right to whole tiles. Other readers ignore the
segment and show the padding.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import RecordError

TILES_MARKER = 0xE9
TILE_WIDTH = 64
_TILES = b"Penstock tiles\0"
_VERSION = 1
_FIXED = struct.Struct(">BHHH")
_CHECKSUM = struct.Struct(">I")
_MOST_LENGTHS = (0xFFFF - 2 - len(_TILES) - _FIXED.size - _CHECKSUM.size) // 2


@dataclass(frozen=True, slots=True)
class TileTable:
    """The table of tiles.

    Attributes:
        width: Columns of the image without the padding.
        height: Rows of the image.
        lengths: Bytes of each tile, big-endian uint16; None if the reader has to find the markers.
    """

    width: int
    height: int
    lengths: bytes | None


def read_table(body: bytes) -> TileTable | None:
    """Read the table of tiles from a segment's body; return None for another segment."""
    if not body.startswith(_TILES):
        return None
    end = len(body) - _CHECKSUM.size
    if end < len(_TILES) or _CHECKSUM.unpack_from(body, end)[0] != zlib.crc32(body[:end]):
        raise RecordError("damaged JPEG: the checksum of its table of tiles does not fit")
    fields = body[len(_TILES) : end]
    version, width, height, count = _FIXED.unpack_from(fields)
    if version != _VERSION:
        raise RecordError(
            f"tiled JPEG of version {version}, expected {_VERSION}; pack the data again"
        )
    return TileTable(width, height, fields[_FIXED.size :] if count else None)


def write_tiled(image: NDArray[np.uint8], *, quality: int) -> bytes:
    """Encode an image as JPEG in tiles of 64 columns and one row of units (4:2:0, or grey).

    Args:
        image: uint8 [H, W, 3], RGB, or [H, W, 1], grey.
        quality: libjpeg's quality, 1 .. 100.
    """
    import cv2

    height, width, channels = image.shape
    padding = -width % TILE_WIDTH
    if max(height, width + padding) > 0xFFFF:
        raise ValueError(f"{width}x{height} pixels; a tiled JPEG has at most 65472x65535")
    if padding:
        image = cv2.copyMakeBorder(image, 0, 0, 0, padding, cv2.BORDER_REPLICATE)
    if channels == 3:
        image = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    interval = TILE_WIDTH // (16 if channels == 3 else 8)
    options = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_RST_INTERVAL, interval]
    if channels == 3:
        options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420]
    done, encoded = cv2.imencode(".jpg", image, options)
    assert done
    data = encoded.tobytes()
    data_at = _data_offset(data)
    ends = find_ends(data, data_at)
    assert ends is not None and len(ends) == -(-height // (16 if channels == 3 else 8)) * (
        (width + padding) // TILE_WIDTH
    )
    return data[:2] + _table(width, height, ends, data_at) + data[2:]


def _table(width: int, height: int, ends: NDArray[np.int64], data_at: int) -> bytes:
    lengths = np.diff(ends, prepend=data_at - 2) - 2
    fits = len(lengths) <= _MOST_LENGTHS and int(lengths.max()) <= 0xFFFF
    body = _TILES + _FIXED.pack(_VERSION, width, height, len(lengths) if fits else 0)
    if fits:
        body += lengths.astype(">u2").tobytes()
    body += _CHECKSUM.pack(zlib.crc32(body))
    return struct.pack(">BBH", 0xFF, TILES_MARKER, len(body) + 2) + body


def _data_offset(data: bytes) -> int:
    """Return the offset of the entropy data in a file of `write_tiled`."""
    at = 2
    while True:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        at += 2 + length
        if marker == 0xDA:
            return at


def find_ends(data: bytes, data_at: int) -> NDArray[np.int64] | None:
    """Find the markers that end the intervals, by searching all bytes.

    Returns:
        Offset of the marker behind each interval, int64 [n], including the end of the image.
        None if other markers come first, or the restart markers are misnumbered.
    """
    values = np.frombuffer(data, np.uint8)
    at = np.flatnonzero(values[data_at:-1] == 0xFF) + data_at
    kinds = values[at + 1]
    markers = (kinds != 0) & (kinds != 0xFF)
    at, kinds = at[markers], kinds[markers]
    last = np.flatnonzero(kinds == 0xD9)[:1]
    if not len(last):
        return None
    count = int(last[0])
    if not np.array_equal(kinds[:count], 0xD0 + np.arange(count) % 8):
        return None
    return at[: count + 1]
