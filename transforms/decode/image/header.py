"""Read an image file's header: its size, its orientation and the layout of a JPEG."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.sample import RecordError
from penstock.transforms.decode.image.jpeg_tiles import TILES_MARKER, read_table, segments
from penstock.transforms.decode.image.pillow import open_picture, read_orientation

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BASELINE = 0xC0
_APP1 = 0xE1
_EXIF = b"Exif\0\0"


class Header(NamedTuple):
    """An image file's header.

    `width` is without the `padding` on the right of a tiled JPEG. `orientation` is EXIF's, 1 .. 8,
    and `picture` is Pillow's image, not yet decoded. The other fields describe a JPEG: values per
    pixel; offsets of the frame header's marker and of the entropy data; columns and rows of a
    coded unit (MCU), if parts can be decoded; bytes of each tile, big-endian uint16.
    """

    format: str
    width: int
    height: int
    orientation: int
    picture: ImageFile | None = None
    components: int = 0
    padding: int = 0
    frame_at: int = 0
    data_at: int = 0
    unit: tuple[int, int] | None = None
    tile_lengths: bytes = b""


def read_header(data: bytes) -> Header:
    """Read an image's header; raise `RecordError` if the file is truncated, damaged or unknown."""
    if data.startswith(b"\xff\xd8\xff"):
        return _read_jpeg_header(data)
    picture = open_picture(data)
    (width, height), orientation = picture.size, read_orientation(picture.info.get("exif", b""))
    if picture.format == "TIFF":
        orientation = picture.getexif().get(0x0112, 1)
        if orientation in (5, 6, 7, 8):  # Pillow's size belongs to the rotated image
            width, height = height, width
    return Header(str(picture.format), width, height, orientation, picture)


def _read_jpeg_header(data: bytes) -> Header:
    kind, frame_at, at, end = 0, 0, 0, 0
    frame = exif = b""
    table: tuple[int, int, bytes] | None = None
    for marker, at, end in segments(data):
        if marker in _FRAMES and not frame:
            kind, frame_at, frame = marker, at, data[at + 4 : end]
        elif marker == _APP1 and not exif and data[at + 4 : at + 10] == _EXIF:
            exif = data[at + 4 : end]
        elif marker == TILES_MARKER and table is None:
            table = read_table(data[at + 4 : end])
    if len(frame) < 6:
        raise RecordError("damaged JPEG: no frame header before its pixels")
    precision, height, width, components = struct.unpack_from(">BHHB", frame)
    if precision != 8:
        raise RecordError(f"{precision}-bit JPEG is not supported; convert it to 8 bits")
    unit = None
    # In a sequential file the first scan is the only one if it has all components.
    sole = kind == _BASELINE and data[at + 4] == components and len(frame) == 6 + 3 * components
    if sole and components in (1, 3):
        # A lone component is not interleaved: its units are single blocks (ITU-T T.81, A.2.2).
        factors = frame[7::3] if components == 3 else b"\x11"
        unit = 8 * max(f >> 4 for f in factors), 8 * max(f & 15 for f in factors)
    own_width, own_height, tile_lengths = table or (width, height, b"")
    if width < own_width or height != own_height:
        raise RecordError("damaged JPEG: its table of tiles is of another image")
    return Header(
        "JPEG",
        own_width,
        height,
        read_orientation(exif),
        components=components,
        padding=width - own_width,
        frame_at=frame_at,
        data_at=end,
        unit=unit if unit and all(unit) else None,
        tile_lengths=tile_lengths,
    )
