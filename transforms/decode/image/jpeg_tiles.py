"""Write tiled JPEG: a baseline file that restart markers cut into tiles of one size.

A restart marker ends a byte and resets all prediction (ITU-T T.81, section F.1.1.5), so the data
between two markers can be decoded alone. An application segment lists the lengths of the tiles
and the width of the image, which is padded on the right to whole tiles.

Overviews may follow the file: smaller copies of the image, each a JPEG. Decoding a large
photograph for a small crop reads all its entropy data at any scale; a smaller copy has less.
Another segment lists their offsets. Other readers ignore both segments: they show the padding and
stop before the overviews.
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
# Fast factors of libjpeg-turbo's DCT scaling, so that both ways give the same sizes.
FACTORS = (2, 4, 8)
_TILES = b"Penstock tiles\0"
_OVERVIEWS = b"Penstock overviews\0"
_VERSION = 1
_FIXED = struct.Struct(">BHHH")
_ENTRY = struct.Struct(">BII")
_CHECKSUM = struct.Struct(">I")
_MOST_LENGTHS = (0xFFFF - 2 - len(_TILES) - _FIXED.size - _CHECKSUM.size) // 2

Overview = tuple[int, int, int]
"""Factor by which both sides shrink (rounded up), offset in the file, length in bytes."""


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
    fields = _checked(body, _TILES, "tiles")
    if fields is None:
        return None
    version, width, height, count = _FIXED.unpack_from(fields)
    if version != _VERSION:
        raise RecordError(
            f"tiled JPEG of version {version}, expected {_VERSION}; pack the data again"
        )
    return TileTable(width, height, fields[_FIXED.size :] if count else None)


def read_overviews(body: bytes) -> tuple[Overview, ...] | None:
    """Read the table of overviews from a segment's body, like `read_table`."""
    fields = _checked(body, _OVERVIEWS, "overviews")
    return None if fields is None else tuple(_ENTRY.iter_unpack(fields))


def write_tiled(image: NDArray[np.uint8], *, quality: int, overviews: bool = False) -> bytes:
    """Encode an image as JPEG in tiles of 64 columns and one row of units (4:2:0, or grey).

    Args:
        image: uint8 [H, W, 3], RGB, or [H, W, 1], grey.
        quality: libjpeg's quality, 1 .. 100.
        overviews: Append tiled copies at 1/2, 1/4 and 1/8 of the size, down to 64 pixels a
            side, for decoding at a scale.
    """
    import cv2

    data = _write_tiles(image, quality)
    height, width, channels = image.shape
    smaller = []
    for factor in FACTORS if overviews else ():
        size = -(-height // factor), -(-width // factor)
        if min(size) >= TILE_WIDTH:
            # Pad, so that each smaller pixel is the mean of equally many pixels.
            padding = 0, size[0] * factor - height, 0, size[1] * factor - width
            padded = cv2.copyMakeBorder(image, *padding, cv2.BORDER_REPLICATE)
            small = cv2.resize(padded, size[::-1], interpolation=cv2.INTER_AREA)
            smaller.append((factor, _write_tiles(small.reshape(*size, channels), quality)))
    if not smaller:
        return data
    at = len(data) + len(_segment(_OVERVIEWS, bytes(_ENTRY.size * len(smaller))))
    body = b""
    for factor, overview in smaller:
        body += _ENTRY.pack(factor, at, len(overview))
        at += len(overview)
    files = [overview for _, overview in smaller]
    return b"".join([data[:2], _segment(_OVERVIEWS, body), data[2:], *files])


def _segment(name: bytes, fields: bytes) -> bytes:
    """Return an application segment: a name, the fields and a checksum."""
    body = name + fields
    body += _CHECKSUM.pack(zlib.crc32(body))
    return struct.pack(">BBH", 0xFF, TILES_MARKER, len(body) + 2) + body


def _checked(body: bytes, name: bytes, what: str) -> bytes | None:
    """Return the fields in a body of `_segment`; None for another name."""
    if not body.startswith(name):
        return None
    end = len(body) - _CHECKSUM.size
    if end < len(name) or _CHECKSUM.unpack_from(body, end)[0] != zlib.crc32(body[:end]):
        raise RecordError(f"damaged JPEG: the checksum of its table of {what} does not fit")
    return body[len(name) : end]


def _write_tiles(image: NDArray[np.uint8], quality: int) -> bytes:
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
    body = _FIXED.pack(_VERSION, width, height, len(lengths) if fits else 0)
    return _segment(_TILES, body + (lengths.astype(">u2").tobytes() if fits else b""))


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
