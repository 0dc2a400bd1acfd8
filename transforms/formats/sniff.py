"""What a file really is, by its first bytes and not by its name."""

from __future__ import annotations

from transforms.formats import bmp, jpeg, png, tiff, webp
from transforms.formats.header import Header

_FOREIGN = (
    (b"GIF87a", "a GIF"),
    (b"GIF89a", "a GIF"),
    (b"\0\0\0\x0cjP  ", "a JPEG 2000 image"),
    (b"\xff\x4f\xff\x51", "a JPEG 2000 image"),
    (b"\xff\x0a", "a JPEG XL image"),
    (b"\0\0\0\x0cJXL ", "a JPEG XL image"),
    (b"8BPS", "a Photoshop file"),
    (b"%PDF", "a PDF"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "a gzip file"),
    (b"\x93NUMPY", "a NumPy array"),
)
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def read_header(data: bytes) -> Header:
    """Read an image's header, whatever its format, and check that the file is whole.

    Args:
        data: The file.

    Raises:
        ValueError: The file is cut short or damaged, or no image of a known format; the
            message names what it is instead.
    """
    if data[:3] == b"\xff\xd8\xff":
        return jpeg.read_header(data)
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return png.read_header(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return webp.read_header(data)
    if data[:4] in _TIFF:
        return tiff.read_header(data)
    if data[:2] == b"BM":
        return bmp.read_header(data)
    raise ValueError(f"{_name(data)}, not an image in JPEG, PNG, WebP, BMP or TIFF format")


def _name(data: bytes) -> str:
    if not data:
        return "an empty file (0 bytes)"
    for magic, name in _FOREIGN:
        if data.startswith(magic):
            return name
    if data[4:8] == b"ftyp":
        brand = data[8:12].decode("latin-1").strip()
        return f"an AVIF, HEIF or video file (brand {brand!r})"
    start = data[:64]
    if start.lstrip()[:1] == b"<":
        return "HTML or XML text"
    if _is_text(start):
        return f"text ({start.decode(errors='replace')[:20]!r})"
    return f"unknown data (it begins with {data[:8].hex(' ')})"


def _is_text(start: bytes) -> bool:
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        if error.start < len(start) - 3:  # not just a character cut off at the end
            return False
        text = start[: error.start].decode()
    return all(character.isprintable() or character in "\r\n\t" for character in text)
