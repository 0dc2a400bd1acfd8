"""Decode JPEG bytes, all or only around a box; raise on damage.

Tiles of a tiled file form a smaller JPEG. Of another baseline file, TurboJPEG decodes a region.
Without TurboJPEG, a lower height in the frame header skips the rows below.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Box, Part, RecordError
from penstock.core.user_errors import is_trouble
from penstock.transforms.decode.image.header import Header
from penstock.transforms.decode.image.jpeg_tiles import CONTEXT, END_OF_IMAGE, cut_tiles
from penstock.transforms.decode.image.pillow import decode_picture, open_picture
from penstock.transforms.decode.image.pixels import CHANNELS, convert
from penstock.transforms.decode.image.turbojpeg import region_decoder

Image = NDArray[np.uint8]

# Messages of simplejpeg about valid files that it cannot read.
_REFUSALS = ("Could not determine subsampling", "Unsupported", "not supported", "not implemented")
_EXTRANEOUS = re.compile(r"(\d+) extraneous bytes before marker 0xd9")
# libjpeg interpolates narrower images differently (jdsample.c).
_LEAST_WIDTH = 8


def decode_part(data: bytes, header: Header, mode: str, box: Box | None = None) -> Part:
    """Decode the pixels around a box, or everything; raise `RecordError` for a damaged file.

    If the decoder complains about a part, it decodes the whole image.
    """
    if box is not None and header.unit is not None:
        if (part := _decode_around(data, header, mode, box)) is not None:
            return part
    image = _decode_whole(data, header, mode)
    if header.padding:
        image = np.ascontiguousarray(image[:, : header.width])
    return image, 0, 0


def _decode_around(data: bytes, header: Header, mode: str, box: Box) -> Part | None:
    """Decode a part; return None if this saves nothing or the decoder complains."""
    regions = None if header.tile_lengths else region_decoder()
    if regions is not None:
        region = _region_around(header, box)
        # The decoder stops below the region, so it would not notice a truncated file.
        if region is None or data.rfind(END_OF_IMAGE, header.data_at) < 0:
            return None
        found = regions.decode(data, mode, region)
        return None if found is None else (found, region[0], region[1])
    cut = cut_tiles if header.tile_lengths else _cut_rows
    if (part := cut(data, header, box)) is None:
        return None
    file, width, height, left, top = part
    image = np.empty((height, width, CHANNELS[mode]), np.uint8)
    try:
        _decode_into(image, file, mode)
    except ValueError as error:
        # Extra bytes are the rows below. The decoder reports the first warning, so they hide none.
        if header.tile_lengths or not _EXTRANEOUS.search(str(error)):
            return None
    return image, left, top


def _cut_rows(data: bytes, header: Header, box: Box) -> tuple[bytes, int, int, int, int] | None:
    """Lower the height in the frame header, like `cut_tiles`."""
    height = box[3] + CONTEXT
    if height >= header.height:
        return None
    at = header.frame_at + 5
    return data[:at] + height.to_bytes(2, "big") + data[at + 2 :], header.width, height, 0, 0


def _region_around(header: Header, box: Box) -> Box | None:
    """Return the region to decode for a box, from the border of a unit; None for everything."""
    assert header.unit is not None
    unit = header.unit[0]
    left = max(0, box[0] - CONTEXT) // unit * unit
    right = min(header.width, box[2] + CONTEXT)
    if right - left < _LEAST_WIDTH:
        left = max(0, right - _LEAST_WIDTH) // unit * unit
        right = min(header.width, max(right, left + _LEAST_WIDTH))
    # The decoder adds the rows above and below itself. Close to the last row, decode to the end,
    # so that the decoder checks the end of the file.
    bottom = box[3] if box[3] + CONTEXT < header.height else header.height
    region = left, box[1], right, bottom
    is_small = right - left < _LEAST_WIDTH
    return None if is_small or region == (0, 0, header.width, header.height) else region


def _decode_whole(data: bytes, header: Header, mode: str) -> Image:
    """Decode everything strictly: unusual files go to Pillow, damaged files raise."""
    if header.components == 4 and mode == "L":  # CMYK becomes grey by way of RGB
        return convert(_decode_whole(data, header, "RGB"), "L")
    image = np.empty((header.height, header.width + header.padding, CHANNELS[mode]), np.uint8)
    try:
        # The buffer keeps its pixels when the decoder complains after the last of them.
        _decode_into(image, data, mode)
    except ValueError as error:
        if is_trouble(error):
            raise MemoryError(str(error)) from None
        cause = str(error)
        extraneous = _EXTRANEOUS.search(cause)
        if extraneous and int(extraneous[1]) <= max(64, len(data) // 64):
            # Some cameras write padding after the pixels. A larger number of bytes means that a
            # damaged header hides pixels.
            return image
        if any(refusal in cause for refusal in _REFUSALS):
            return convert(decode_picture(open_picture(data, ("JPEG",)), alpha=False), mode)
        raise RecordError(f"damaged JPEG: {cause}") from None
    return image


def _decode_into(image: Image, data: bytes, mode: str) -> None:
    import simplejpeg

    simplejpeg.decode_jpeg(data, "GRAY" if mode == "L" else mode, buffer=image.reshape(-1))
