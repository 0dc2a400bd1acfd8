"""Write tiled JPEG, and cut tiles out of it.

A tiled JPEG is a baseline file that restart markers cut into tiles of 64 columns and one row of
units. A marker resets all prediction (ITU-T T.81, section F.1.1.5), so some tiles alone form a
smaller JPEG. An application segment lists the bytes of each tile and the width of the image, which
is padded on the right to whole tiles. Other readers ignore the segment and show the padding.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Box, RecordError

if TYPE_CHECKING:
    from penstock.transforms.decode.image.header import Header

TILES_MARKER = 0xE9
END_OF_IMAGE = b"\xff\xd9"
# Chroma interpolation reads one sample, that is two pixels, beyond the edge.
CONTEXT = 2
_TILE_WIDTH = 64
_TILES = b"Penstock tiles\0"
_FIXED = struct.Struct(">BHHH")  # 1, width, height, 0
_ENDS = re.compile(b"\xff[\xd0-\xd7\xd9]")  # restart markers, and the end of the image
_MARKER_BYTES = 2
_RESTARTS = [bytes([0xFF, 0xD0 + number]) for number in range(8)]


def segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield marker, start and end of each segment up to the start of the scan (ITU-T T.81, B)."""
    at, marker = 2, 0
    while marker != 0xDA:
        if data[at : at + 2] == b"\xff\xff":  # fill byte
            at += 1
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if at + 4 > end or end >= len(data):
            raise RecordError("truncated JPEG: it ends within its header")
        if data[at] != 0xFF:
            raise RecordError(f"damaged JPEG: no marker at byte {at}, where a segment begins")
        marker = data[at + 1]
        yield marker, at, end
        at = end


def read_table(body: bytes) -> tuple[int, int, bytes] | None:
    """Return width without padding, height and bytes of each tile; None for another segment."""
    if not body.startswith(_TILES):
        return None
    if body[-4:] != zlib.crc32(body[:-4]).to_bytes(4, "big"):
        raise RecordError("damaged JPEG: the checksum of its table of tiles does not fit")
    _, width, height, _ = _FIXED.unpack_from(body, len(_TILES))
    return width, height, body[len(_TILES) + _FIXED.size : -4]


def encode_jpeg(image: NDArray[np.uint8], *, quality: int, interval: int = 0) -> bytes:
    """Encode uint8 [H, W, 3] or [H, W, 1] as baseline JPEG, 4:2:0 or grey.

    `interval` counts the units between two restart markers; 0 is without markers.
    """
    import cv2

    options = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_RST_INTERVAL, interval]
    if image.shape[2] == 3:
        image = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
        options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420]
    return cv2.imencode(".jpg", image, options)[1].tobytes()


def write_tiled(image: NDArray[np.uint8], *, quality: int) -> bytes:
    """Encode an image as tiled JPEG; without tiles if their table does not fit (33 megapixels)."""
    height, width, channels = image.shape
    padded = np.pad(image, ((0, 0), (0, -width % _TILE_WIDTH), (0, 0)), "edge")
    interval = _TILE_WIDTH // (16 if channels == 3 else 8)
    data = encode_jpeg(padded, quality=quality, interval=interval)
    start = list(segments(data))[-1][2]
    ends = [found.end() for found in _ENDS.finditer(data, start)]
    lengths = np.diff(ends, prepend=start) - _MARKER_BYTES
    body = _TILES + _FIXED.pack(1, width, height, 0)
    body += lengths.astype(">u2").tobytes()
    body += zlib.crc32(body).to_bytes(4, "big")
    if len(body) + 2 > 0xFFFF:
        return encode_jpeg(image, quality=quality)
    return data[:2] + struct.pack(">BBH", 0xFF, TILES_MARKER, len(body) + 2) + body + data[2:]


def cut_tiles(data: bytes, header: Header, box: Box) -> tuple[bytes, int, int, int, int] | None:
    """Cut the tiles around a box out of a tiled file, as a JPEG of their own.

    Return the JPEG, its size and its first column and row; None if this saves nothing.
    """
    assert header.unit is not None
    stored_width, (_, unit_height) = header.width + header.padding, header.unit
    columns, rows = stored_width // _TILE_WIDTH, -(-header.height // unit_height)
    lengths = np.frombuffer(header.tile_lengths, ">u2")
    ends = (np.cumsum(lengths + np.int64(_MARKER_BYTES)) + header.data_at).tolist()
    first_column, end_column = _touched(box[0], box[2], _TILE_WIDTH, columns)
    first_row, end_row = _touched(box[1], box[3], unit_height, rows)
    left, top = first_column * _TILE_WIDTH, first_row * unit_height
    width = end_column * _TILE_WIDTH - left
    height = min(header.height, end_row * unit_height) - top
    if len(ends) != rows * columns or (width, height) == (stored_width, header.height):
        return None
    starts = [header.data_at, *ends]
    pieces = [data[: header.frame_at + 5], struct.pack(">HH", height, width)]
    pieces.append(data[header.frame_at + 9 : header.data_at])
    number = 0
    for row in range(first_row, end_row):
        for tile in range(row * columns + first_column, row * columns + end_column):
            end = ends[tile] - _MARKER_BYTES
            marker = _RESTARTS[tile & 7] if tile + 1 < len(ends) else END_OF_IMAGE
            if data[end : ends[tile]] != marker:
                return None
            pieces += data[starts[tile] : end], _RESTARTS[number & 7]
            number += 1
    pieces[-1] = END_OF_IMAGE
    return b"".join(pieces), width, height, left, top


def _touched(start: int, stop: int, size: int, count: int) -> tuple[int, int]:
    """Return the range of tiles that touch the pixels `start` .. `stop` - 1 and their context."""
    return max(0, start - CONTEXT) // size, min(count, (stop + CONTEXT - 1) // size + 1)
