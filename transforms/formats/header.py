"""What is known of an image before its pixels are decoded."""

from __future__ import annotations

from typing import NamedTuple


class JpegScan(NamedTuple):
    """Where the pixels of a baseline JPEG of one scan lie.

    Attributes:
        frame_at: Offset of the frame header's marker.
        data_at: Offset of the first byte of entropy data.
        width: Columns as coded; a tiled file has some more than the image.
        height: Rows as coded.
        unit_width: Columns of the smallest unit that is coded together (MCU), in pixels.
        unit_height: Its rows.
        restart_interval: Units between two restart markers; 0 without markers.
        tile_lengths: Bytes between the markers, big-endian uint16 each, where the file says so.
    """

    frame_at: int
    data_at: int
    width: int
    height: int
    unit_width: int
    unit_height: int
    restart_interval: int
    tile_lengths: bytes | None


class Header(NamedTuple):
    """An image file's header.

    Attributes:
        format: ``JPEG``, ``PNG``, ``WebP``, ``BMP`` or ``TIFF``.
        width: Columns of pixels as stored, before any rotation.
        height: Rows of pixels as stored, before any rotation.
        components: Values per pixel as stored; 0 where the format does not say.
        orientation: The EXIF orientation, 1 .. 8; 1 is upright.
        patches: Offset and bytes to be put there before a TIFF is decoded, so that the library
            leaves orientation and alpha alone.
        transparent_grey: A grey PNG's one transparent value, else None.
        padding: Columns on the right of the stored pixels that are not part of the image.
        scan: How the pixels lie in a JPEG of which parts can be decoded, else None.
        overviews: Smaller copies in the file: factor, offset and length in bytes of each.
    """

    format: str
    width: int
    height: int
    components: int = 0
    orientation: int = 1
    patches: tuple[tuple[int, bytes], ...] = ()
    transparent_grey: int | None = None
    padding: int = 0
    scan: JpegScan | None = None
    overviews: tuple[tuple[int, int, int], ...] = ()
