"""JPEG bytes to pixels, all of them or those around a box; damage raises."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from datasets.pending_image import smaller_box
from transforms.formats.jpeg import read_header
from transforms.formats.jpeg_region import (
    LEAST_WIDTH,
    JpegPart,
    cut_part,
    is_tiled,
    region_around,
)
from transforms.formats.opencv_pixels import CHANNELS, convert, imdecode
from transforms.formats.turbojpeg import region_decoder

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from datasets.pending_image import Box, Part
    from transforms.formats.header import Header
    from transforms.formats.turbojpeg import RegionDecoder

    Image = NDArray[np.uint8]

_COLORSPACE = {"RGB": "RGB", "L": "GRAY", "RGBA": "RGBA"}
# What simplejpeg says of files that are whole but that it cannot read.
_REFUSALS = ("Could not determine subsampling", "Unsupported", "not supported", "not implemented")
# What it says of markers among the pixels, of which a baseline file of one scan has none.
_STRAY_MARKERS = ("Unsupported marker type", "Unsupported JPEG process")
_END_OF_IMAGE = b"\xff\xd9"
_EXTRANEOUS = re.compile(r"(\d+) extraneous bytes before marker 0xd9")


def decode_around(data: bytes, header: Header, mode: str, box: Box | None) -> Part:
    """Decode what a box needs, or everything; the pixels, and the column and row they begin at.

    Whatever the decoder says of a part, the whole image decides whether the file is damaged:
    it is decoded then, and what it forgives is forgiven.
    """
    return _cut(data, header, mode, box, 1)()


def cut_around(data: bytes, header: Header, mode: str, box: Box) -> Callable[[], Part]:
    """Cut out what a box needs; what is returned decodes it, as `decode_around` does."""
    return _cut(data, header, mode, box, 1)


def decode_reduced(data: bytes, header: Header, mode: str, box: Box | None, factor: int) -> Part:
    """Like `decode_around`, with both sides smaller by a factor of 2, 4 or 8, rounded up.

    An overview of that factor in the file is taken; else the pixels are those of DCT scaling,
    in which the decoder transforms the low frequencies alone (libjpeg's ``scale_denom``).

    Args:
        data: The file.
        header: Its header.
        mode: ``RGB``, ``L`` or ``RGBA``.
        box: A box of the whole image, in its own pixels; None for all of it.
        factor: 2, 4 or 8.

    Returns:
        The pixels, and the smaller column and row at which they begin.
    """
    size = -(-header.height // factor), -(-header.width // factor)
    for its_factor, offset, size_bytes in header.overviews:
        if its_factor == factor:
            overview = data[offset : offset + size_bytes]
            its_header = read_header(overview)
            if (its_header.height, its_header.width) != size:
                raise ValueError("damaged JPEG: its overviews are those of another image")
            smaller = smaller_box(box, factor) if box is not None else None
            return decode_around(overview, its_header, mode, smaller)
    if box is not None:
        # Chroma is interpolated between smaller pixels, so its context is wider in whole ones.
        context = 2 * factor
        box = (
            max(0, box[0] - context),
            max(0, box[1] - context),
            min(header.width, box[2] + context),
            min(header.height, box[3] + context),
        )
    image, left, top = _cut(data, header, mode, box, factor)()
    return image, left // factor, top // factor


def _cut(
    data: bytes, header: Header, mode: str, box: Box | None, factor: int
) -> Callable[[], Part]:
    scan = header.scan
    if box is None or scan is None:
        return functools.partial(_decode_part, None, data, header, mode, factor)
    regions = region_decoder()
    if regions is None or is_tiled(scan):
        part = cut_part(data, scan, box)
        return functools.partial(_decode_part, part, data, header, mode, factor)
    region = region_around(scan, box, factor)
    # It stops below the region, and would not see that the file ends too early.
    if region is None or data.rfind(_END_OF_IMAGE, scan.data_at) < 0:
        return functools.partial(_decode_part, None, data, header, mode, factor)
    return functools.partial(_decode_region, regions, region, data, header, mode, factor)


def _decode_region(
    regions: RegionDecoder, region: Box, data: bytes, header: Header, mode: str, factor: int
) -> Part:
    image = regions.decode(data, mode, region, factor)
    if image is not None:
        return image, region[0] * factor, region[1] * factor
    return decode_whole(data, header, mode, factor=factor), 0, 0


def _decode_part(
    part: JpegPart | None, data: bytes, header: Header, mode: str, factor: int
) -> Part:
    if part is not None and part.width >= LEAST_WIDTH * factor:
        image = _buffer(part.height, part.width, mode, factor)
        try:
            _decode_into(image, part.file(), mode, factor)
        except ValueError as error:
            # The first complaint is the one that is reported, so nothing hides behind this one.
            left_over = not part.exhaustive and _EXTRANEOUS.search(str(error))
            if left_over:
                return image, part.left, part.top
        else:
            return image, part.left, part.top
    return decode_whole(data, header, mode, factor=factor), 0, 0


def decode_whole(data: bytes, header: Header, mode: str, *, factor: int = 1) -> Image:
    """Decode everything, and leave out what pads the image."""
    import numpy as np

    image = _decode_stored(data, header, mode, factor)
    if not header.padding:
        return image
    return np.ascontiguousarray(image[:, : -(-header.width // factor)])


def _decode_stored(data: bytes, header: Header, mode: str, factor: int) -> Image:
    """Decode strictly; what is only unusual goes to another library, what is damaged raises."""
    columns = header.width + header.padding
    if header.components == 4 and mode == "L":  # CMYK has no grey of its own
        return convert(_decode_stored(data, header, "RGB", factor)[..., ::-1], "L")
    image = _buffer(header.height, columns, mode, factor)
    try:
        # The buffer keeps its pixels when the decoder complains after the last of them.
        _decode_into(image, data, mode, factor)
    except ValueError as error:
        cause = str(error)
        extraneous = _EXTRANEOUS.search(cause)
        if extraneous and int(extraneous[1]) <= max(64, len(data) // 64):
            # Padding between the pixels and the end, which some cameras write. Much of it is
            # something else: pixels that a damaged header hides.
            return image
        stray = header.scan is not None and cause.startswith(_STRAY_MARKERS)
        if not stray and any(refusal in cause for refusal in _REFUSALS):
            return _smaller(_decode_unusual(data, mode), image.shape)
        raise ValueError(f"damaged JPEG: {cause}") from None
    return image


def _buffer(height: int, width: int, mode: str, factor: int) -> Image:
    import numpy as np

    return np.empty((-(-height // factor), -(-width // factor), CHANNELS[mode]), np.uint8)


def _decode_into(image: Image, data: bytes | bytearray, mode: str, factor: int) -> None:
    """Decode into a buffer of `_buffer`."""
    import simplejpeg

    # The decoder takes the smallest scale that has as many pixels as this.
    least = {"min_height": image.shape[0], "min_width": image.shape[1]} if factor > 1 else {}
    simplejpeg.decode_jpeg(data, _COLORSPACE[mode], buffer=image.reshape(-1), **least)


def _smaller(image: Image, shape: tuple[int, ...]) -> Image:
    import cv2

    if image.shape == shape:
        return image
    small = cv2.resize(image, shape[1::-1], interpolation=cv2.INTER_AREA)
    return small.reshape(shape)


def _decode_unusual(data: bytes, mode: str) -> Image:
    """Decode with cv2, which keeps silent about missing pixels, and find them all the same.

    Where the pixels end early, the decoder reads on into whatever comes before the end
    marker. So bytes are put there: the pixels of a whole file do not change.
    """
    import numpy as np

    end = data.rfind(b"\xff\xd9")
    if end < 0:
        raise ValueError("truncated JPEG: it has no end marker")
    image = imdecode(data, "JPEG")
    probe = imdecode(data[:end] + b"\x55" * 256 + data[end:], "JPEG")
    if not np.array_equal(image, probe):
        raise ValueError("damaged JPEG: its pixels end before the image does")
    return convert(image, mode)
