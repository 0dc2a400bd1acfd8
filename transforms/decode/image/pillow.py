"""Images that are no JPEG, read by Pillow; what it keeps silent about is checked here.

Against OpenCV a PNG takes 6 % longer, WebP and TIFF 13 %. For that every format it knows is read
as it is meant: palettes, alpha, grey of any depth.
"""

from __future__ import annotations

import importlib
import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import RecordError
from penstock.core.user_errors import is_trouble
from penstock.transforms.decode.image.header import Header, read_orientation
from penstock.transforms.decode.image.pixels import upright

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

# Pillow's module and name of each format, by ours.
_PLUGINS = {
    "AVIF": ("AvifImagePlugin", "AVIF"),
    "BMP": ("BmpImagePlugin", "BMP"),
    "GIF": ("GifImagePlugin", "GIF"),
    "JPEG": ("JpegImagePlugin", "JPEG"),
    "JPEG 2000": ("Jpeg2KImagePlugin", "JPEG2000"),
    "PNG": ("PngImagePlugin", "PNG"),
    "TIFF": ("TiffImagePlugin", "TIFF"),
    "WebP": ("WebPImagePlugin", "WEBP"),
}
_MOST_WEBP_PIXELS = 1 << 28  # of the formats here it alone looks at Pillow's limit when opened
_WIDTH, _HEIGHT, _ORIENTATION = 256, 257, 274
_PLACES = (273, 279), (324, 325)  # offsets and sizes, of strips and of tiles


def open_header(data: bytes, format_name: str) -> Header:
    """Open a file, and check that it is whole as far as its header shows it.

    Raises:
        RecordError: The file is cut short or damaged, or of a kind that Pillow does not read.
    """
    if format_name == "PNG":
        return _png_header(data)
    if format_name == "WebP":
        (size,) = struct.unpack_from("<I", data, 4)
        if size + 8 > len(data):
            raise RecordError(f"truncated WebP: {len(data)} bytes of {size + 8}")
    picture = open_picture(data, format_name)
    if format_name == "TIFF":
        with damage_told(format_name):
            return _tiff_header(data, picture)
    block = picture.info.get("exif", b"")
    orientation = read_orientation(block.removeprefix(b"Exif\0\0"))
    return Header(format_name, *picture.size, orientation, picture)


def open_picture(data: bytes, format_name: str) -> Picture:
    """Open a file of a known format; its pixels are decoded later.

    `Image.open` would ask every format in turn, and has a limit of its own.

    Raises:
        RecordError: It is damaged, or of a kind that Pillow does not read.
    """
    from PIL import Image

    module, name = _PLUGINS[format_name]
    importlib.import_module(f"PIL.{module}")
    picture: Picture
    with damage_told(format_name):
        try:
            picture = Image.OPEN[name][0](io.BytesIO(data), "")
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            _allow(_MOST_WEBP_PIXELS)  # ours is the next to look at its size
            picture = Image.OPEN[name][0](io.BytesIO(data), "")
        return picture


def _allow(pixels: int) -> None:
    """Let Pillow's own limit give way to `max_pixels`, which has allowed this image."""
    from PIL import Image

    if Image.MAX_IMAGE_PIXELS is not None and Image.MAX_IMAGE_PIXELS < pixels:
        Image.MAX_IMAGE_PIXELS = pixels


@contextmanager
def damage_told(format_name: str) -> Iterator[None]:
    """Raise whatever Pillow raises about a file as a ValueError of one line."""
    try:
        yield
    except Exception as error:  # it depends on the format, and on what is damaged
        if isinstance(error, ImportError) or is_trouble(error):
            raise
        cause = " ".join(str(error).split()) or type(error).__name__
        raise RecordError(f"damaged or unusual {format_name}: {cause}") from None


def check_png(data: bytes) -> int:
    """Check that every chunk of a PNG is whole (PNG specification, third edition, section 5).

    Returns:
        The EXIF orientation, 1 .. 8.

    Raises:
        RecordError: The file is cut short, or a checksum does not agree.
    """
    view = memoryview(data)
    orientation = 1
    at, kind = 8, b""
    while kind != b"IEND":
        if at + 12 > len(data):
            raise RecordError("truncated PNG: it ends before its last chunk")
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + 8 + length
        if end + 4 > len(data):
            raise RecordError(f"truncated PNG: it ends within its {kind!r} chunk")
        (checksum,) = struct.unpack_from(">I", data, end)
        if crc32(view[at + 4 : end]) != checksum:
            raise RecordError(f"damaged PNG: the checksum of its {kind!r} chunk does not agree")
        if at == 8 and (kind != b"IHDR" or length != 13):
            raise RecordError("damaged PNG: it does not begin with its header")
        if kind == b"eXIf":
            orientation = read_orientation(view[at + 8 : end])
        at = end + 4
    return orientation


def _png_header(data: bytes) -> Header:
    """Check the chunks before Pillow sees them.

    It takes damaged ones that zlib does not notice, and finds an orientation only by decoding
    the pixels.
    """
    orientation = check_png(data)
    picture = open_picture(data, "PNG")
    depth, transparent = data[24], picture.info.get("transparency")
    # It makes pixels 8 bits deep, but not the colour that they are compared with.
    if picture.mode == "L" and transparent is not None:
        picture.info["transparency"] = transparent * 255 // ((1 << depth) - 1)
    elif picture.mode == "RGB" and transparent is not None and depth == 16:
        picture.info["transparency"] = tuple(value >> 8 for value in transparent)
    return Header("PNG", *picture.size, orientation, picture)


def _tiff_header(data: bytes, picture: Any) -> Header:
    """Read the first directory's size and orientation; every strip or tile has to be there."""
    tags = picture.tag_v2
    for offsets, sizes in _PLACES:
        pairs = zip(tags.get(offsets, ()), tags.get(sizes, ()), strict=False)
        end = max((offset + size for offset, size in pairs), default=0)
        if end > len(data):
            raise RecordError(f"its pixels reach to byte {end}, it has {len(data)}")
    orientation = tags.get(_ORIENTATION, 1)
    if orientation not in range(1, 9):
        orientation = 1
    # Pillow turns a TIFF where it decodes it, by this one, which it would also take from elsewhere.
    picture.getexif()[_ORIENTATION] = orientation
    return Header("TIFF", tags[_WIDTH], tags[_HEIGHT], orientation, picture)


def decode_picture(header: Header, *, alpha: bool) -> NDArray[np.uint8]:
    """Decode all pixels as they are stored, the first image of several.

    Args:
        header: Of `open_header`.
        alpha: Keep what is transparent; otherwise the colours are as if nothing were.

    Returns:
        uint8 [H, W, C]: grey, RGB or RGBA; only read.

    Raises:
        RecordError: It is damaged, or has more than 16 bits.
    """
    picture, name = header.picture, header.format
    assert picture is not None
    _allow(header.width * header.height)
    with damage_told(name):
        picture.load()
    if picture.mode in ("I", "F"):
        kind = "int32" if picture.mode == "I" else "float32"
        raise RecordError(f"{name} of {kind} pixels; expected 8 or 16 bits")
    with damage_told(name):
        pixels = _converted(picture, alpha=alpha)
    if pixels.dtype == np.uint16:
        pixels = (pixels >> 8).astype(np.uint8)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if name == "TIFF" and header.orientation != 1:
        pixels = upright(pixels, {6: 8, 8: 6}.get(header.orientation, header.orientation))
    return pixels


def _converted(picture: Picture, *, alpha: bool) -> NDArray[Any]:
    """Grey or colours, with alpha if that is wanted and there is some."""
    mode, transparent = picture.mode, picture.info.get("transparency")
    if not alpha or (transparent is None and "A" not in mode.upper()):
        if mode in ("LA", "La"):
            return np.asarray(picture.convert("LA"))[..., 0]
        if mode in ("L", "RGB", "RGBA") or mode.startswith("I;16"):
            return np.asarray(picture)
        return np.asarray(picture.convert("L" if mode == "1" else "RGB"))
    if mode.startswith("I;16"):
        deep = np.asarray(picture)
        opaque = np.where(deep == transparent, 0, 255).astype(np.uint8)
        return np.dstack([(deep >> 8).astype(np.uint8)] * 3 + [opaque])
    return np.asarray(picture.convert("RGBA"))
