"""What is known of an image before its pixels are decoded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Header:
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
    """

    format: str
    width: int
    height: int
    components: int = 0
    orientation: int = 1
    patches: tuple[tuple[int, bytes], ...] = ()
    transparent_grey: int | None = None
