"""Tiled JPEG: an ordinary baseline file whose restart markers cut it into tiles of one size.

A restart marker ends a byte and resets all prediction (ITU-T T.81, section F.1.1.5), so the
data between two of them can be decoded alone. A table in an application segment says how long
the tiles are, and how wide the image is: it is padded on the right to whole tiles. A reader
that does not know the segment sees the padding.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transforms.formats.jpeg_overviews import FACTORS, append_overviews

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TILES_MARKER = 0xE9
TILE_WIDTH = 64
_NAME = b"Penstock tiles\0"
_VERSION = 1
_FIXED = struct.Struct(">BHHH")
_CHECKSUM = struct.Struct(">I")
_MOST_LENGTHS = (0xFFFF - 2 - len(_NAME) - _FIXED.size - _CHECKSUM.size) // 2


@dataclass(frozen=True, slots=True)
class TileTable:
    """What the segment says.

    Attributes:
        width: Columns of the image without the padding.
        height: Rows of the image.
        lengths: Bytes of each tile, big-endian uint16; None where a scan has to find them.
    """

    width: int
    height: int
    lengths: bytes | None


def read_table(body: bytes) -> TileTable | None:
    """Read the segment's body.

    Returns:
        The table; None for another program's segment of this kind.

    Raises:
        ValueError: The segment is damaged.
    """
    if not body.startswith(_NAME):
        return None
    at = len(_NAME)
    end = len(body) - _CHECKSUM.size
    if end < at + _FIXED.size or _CHECKSUM.unpack_from(body, end)[0] != zlib.crc32(body[:end]):
        raise ValueError("damaged JPEG: the checksum of its table of tiles does not fit")
    version, width, height, count = _FIXED.unpack_from(body, at)
    at += _FIXED.size
    if version != _VERSION:
        raise ValueError(
            f"tiled JPEG of version {version}, expected {_VERSION}; pack the data again"
        )
    return TileTable(width, height, body[at:end] if count else None)


def write_tiled(image: NDArray[np.uint8], *, quality: int, overviews: bool = False) -> bytes:
    """Encode an image in tiles of 64 columns and one row of units (4:2:0, or grey).

    Args:
        image: uint8 [H, W, 3], RGB, or [H, W, 1], grey.
        quality: libjpeg's quality, 1 .. 100.
        overviews: Put smaller copies behind it, tiled themselves, for decoding at a scale: half,
            a quarter and an eighth of its size, those that have a tile's columns and rows.

    Returns:
        The file.

    Raises:
        ValueError: The image is larger than a JPEG can be.
    """
    data = _write_tiles(image, quality)
    return add_overviews(data, image, quality=quality) if overviews else data


def add_overviews(data: bytes, image: NDArray[np.uint8], *, quality: int) -> bytes:
    """Put smaller copies of an image, in tiles, behind its file, see `write_tiled`.

    Args:
        data: The file.
        image: uint8 [H, W, 3], RGB, or [H, W, 1], grey.
        quality: libjpeg's quality of the copies, 1 .. 100.
    """
    import cv2

    height, width, channels = image.shape
    smaller = []
    for factor in FACTORS:
        size = -(-height // factor), -(-width // factor)
        if min(size) >= TILE_WIDTH:
            # Each of the smaller pixels stands for as many whole ones, the last ones too.
            padding = 0, size[0] * factor - height, 0, size[1] * factor - width
            padded = cv2.copyMakeBorder(image, *padding, cv2.BORDER_REPLICATE)
            small = cv2.resize(padded, size[::-1], interpolation=cv2.INTER_AREA)
            smaller.append((factor, _write_tiles(small.reshape(*size, channels), quality)))
    return append_overviews(data, smaller) if smaller else data


def add_table(data: bytes) -> bytes:
    """Put the table into a file of regular restart intervals that has none.

    Args:
        data: A baseline file of one scan.
    """
    data_at = _data_offset(data)
    ends = find_ends(data, data_at)
    assert ends is not None
    frame_at = next(at for kind, at in _segments(data) if kind == 0xC0)
    height, width = struct.unpack_from(">HH", data, frame_at + 5)
    return data[:2] + _segment(width, height, ends, data_at) + data[2:]


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
    return data[:2] + _segment(width, height, ends, data_at) + data[2:]


def _segment(width: int, height: int, ends: NDArray[np.int64], data_at: int) -> bytes:
    import numpy as np

    lengths = np.diff(ends, prepend=data_at - 2) - 2
    fits = len(lengths) <= _MOST_LENGTHS and int(lengths.max()) <= 0xFFFF
    body = _NAME + _FIXED.pack(_VERSION, width, height, len(lengths) if fits else 0)
    body += lengths.astype(">u2").tobytes() if fits else b""
    body += _CHECKSUM.pack(zlib.crc32(body))
    return struct.pack(">BBH", 0xFF, TILES_MARKER, len(body) + 2) + body


def _data_offset(data: bytes) -> int:
    """Where the entropy data of a file of our own begins."""
    *_, (_, scan_at) = _segments(data)
    length: int = struct.unpack_from(">H", data, scan_at + 2)[0]
    return scan_at + 2 + length


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Marker and offset of each segment of a file of our own, up to its scan."""
    at = 2
    while True:
        yield data[at + 1], at
        if data[at + 1] == 0xDA:
            return
        at += 2 + int(struct.unpack_from(">H", data, at + 2)[0])


def find_ends(data: bytes, data_at: int) -> NDArray[np.int64] | None:
    """Find the markers that end the intervals, by looking at every byte.

    Args:
        data: The file.
        data_at: Where its entropy data begins.

    Returns:
        int64 [n], the offset of the marker behind each interval, the end of the image included;
        None where other markers come first or the restart markers are not numbered in turn.
    """
    import numpy as np

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
