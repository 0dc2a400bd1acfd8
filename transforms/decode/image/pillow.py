"""Decode images with Pillow, and check for damage that Pillow ignores."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import RecordError
from penstock.core.user_errors import is_trouble

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_FORMATS = ("PNG", "BMP", "GIF", "WEBP", "TIFF", "AVIF", "JPEG2000")


@contextmanager
def damage_as_record_error() -> Iterator[None]:
    """Turn Pillow's exceptions about a file into a `RecordError` of one line."""
    try:
        yield
    except Exception as error:  # the class depends on format and damage
        if isinstance(error, ImportError | RecordError) or is_trouble(error):
            raise
        cause = " ".join(str(error).split()) or type(error).__name__
        raise RecordError(f"damaged or unusual image: {cause}") from None


def open_picture(data: bytes, formats: tuple[str, ...] = _FORMATS) -> ImageFile:
    """Open a file without decoding its pixels; the size is the caller's to check."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # dataset.decode.max_pixels is the limit
    exif = _check_png(data) if data.startswith(PNG_SIGNATURE) else b""
    with damage_as_record_error():
        try:
            picture = Image.open(io.BytesIO(data), formats=formats)
        except Image.UnidentifiedImageError:
            begins = f"begins with {data[:16]!r}" if data else "has 0 bytes"
            raise RecordError(
                f"no readable image: a file that {begins}, expected JPEG, {', '.join(formats)}"
            ) from None
    if picture.format == "WEBP" and int.from_bytes(data[4:8], "little") + 8 > len(data):
        raise RecordError("truncated WebP")
    if exif:
        picture.info["exif"] = exif
    if picture.format == "PNG" and "transparency" in picture.info:
        # Pillow widens grey pixels to 8 bits, but not the transparent grey.
        if (bits := data[24]) == 16:
            raise RecordError("a 16-bit PNG with a transparent colour; convert it to 8 bits")
        if picture.mode == "L":
            picture.info["transparency"] *= 255 // ((1 << bits) - 1)
    return picture


def _check_png(data: bytes) -> bytes:
    """Check the checksum of every chunk; return the EXIF block (PNG specification, section 5)."""
    view, at, kind, exif = memoryview(data), len(PNG_SIGNATURE), b"", b""
    while kind != b"IEND":
        kind, end = data[at + 4 : at + 8], at + 8 + int.from_bytes(data[at : at + 4], "big")
        if data[end : end + 4] != crc32(view[at + 4 : end]).to_bytes(4, "big"):
            raise RecordError(f"truncated PNG, or a damaged one: its chunk {kind!r} at byte {at}")
        if kind == b"eXIf":
            exif = data[at + 8 : end]
        at = end + 4
    return exif


def read_orientation(block: bytes) -> int:
    """Return the orientation in an EXIF block, 1 .. 8; 1, upright, if there is none."""
    if not block:
        return 1
    from PIL import Image

    exif = Image.Exif()
    with suppress(Exception):  # a damaged block
        exif.load(block)
        if (orientation := int(exif.get(0x0112) or 1)) in range(1, 9):
            return orientation
    return 1


def decode_picture(picture: ImageFile, *, alpha: bool) -> NDArray[np.uint8]:
    """Decode a file's first image to grey, RGB or, with `alpha`, RGBA: uint8, maybe read-only."""
    with damage_as_record_error():
        picture.load()
        mode = picture.mode
        if mode in ("I", "F"):
            raise RecordError(f"an image of mode {mode}; expected 8 or 16 bits per value")
        if mode.startswith("I;16"):
            return (np.asarray(picture) >> 8).astype(np.uint8)[..., None]
        if alpha and picture.has_transparency_data:
            wanted = "RGBA"
        else:
            wanted = "L" if mode in ("1", "L", "LA", "La") else "RGB"
        pixels = np.asarray(picture if mode == wanted else picture.convert(wanted))
        return pixels if pixels.ndim == 3 else pixels[..., None]
