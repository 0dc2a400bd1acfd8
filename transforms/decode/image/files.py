"""Decode image files of any format, recognised by their first bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Record, RecordError
from penstock.transforms.decode.image.header import Header, read_jpeg_header
from penstock.transforms.decode.image.jpeg import decode_whole
from penstock.transforms.decode.image.pillow import decode_picture, open_header
from penstock.transforms.decode.image.pixels import convert, upright

Image = NDArray[np.uint8]

_FORMATS = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"BM", "BMP"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),
    (b"MM\0+", "TIFF"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
)


def read_header(data: bytes) -> Header:
    """Read an image's header; raise `RecordError` if the file is truncated, damaged or unknown."""
    if data[:3] == b"\xff\xd8\xff":
        return read_jpeg_header(data)
    for magic, name in _FORMATS:
        if data.startswith(magic):
            return open_header(data, name)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return open_header(data, "WebP")
    if data[4:12] in (b"ftypavif", b"ftypavis"):
        return open_header(data, "AVIF")
    begins = f"begins with {data[:16]!r}" if data else "has 0 bytes"
    raise RecordError(
        f"a file that {begins}, expected an image in JPEG, PNG, WebP, BMP, TIFF, GIF, AVIF or "
        f"JPEG 2000 format"
    )


def image_field(record: Record) -> Any:
    """Return the record's ``image``, a file or pixels; raise `RecordError` if missing or text."""
    data = record.fields.get("image")
    if data is None:
        names = ", ".join(record.fields) or "none"
        raise RecordError(
            f"no field 'image' to decode, fields: {names}; rename one with dataset.keys, or, where "
            f"it is a column of paths, type dataset.storage.image_column=<its name>"
        )
    if isinstance(data, str):
        raise RecordError(
            f"the field 'image' is the text {data[:80]!r}, expected a file's bytes or pixels; name "
            f"the column of the images' paths: dataset.storage.image_column=<its name>"
        )
    return data


def check_size(header: Header, max_pixels: int) -> None:
    """Refuse an image without pixels or with more than `max_pixels`, before allocating memory."""
    if header.width <= 0 or header.height <= 0:
        raise RecordError(f"damaged {header.format}: its size is {header.width}x{header.height}")
    if header.width * header.height > max_pixels:
        raise RecordError(
            f"{header.width}x{header.height} is {header.width * header.height:,} pixels, "
            f"at most {max_pixels:,} are allowed; raise dataset.decode.max_pixels"
        )


def decode_file(data: bytes, header: Header, mode: str, orientation: str) -> Image:
    """Decode all of a file to a new array, uint8 [H, W, C]."""
    if header.format == "JPEG":
        image = decode_whole(data, header, mode)
    else:
        image = convert(decode_picture(header, alpha=mode == "RGBA"), mode)
    if orientation == "apply" and header.orientation != 1:
        return upright(image, header.orientation)
    return np.require(image, requirements=("C", "W"))
