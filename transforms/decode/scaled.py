"""Decode photographs at a scale where the crop is much smaller; pixels differ a little."""

from __future__ import annotations

import functools
from typing import Annotated, Literal

from annotated_types import Ge

from penstock.core.registry import register
from penstock.core.sample import Box, Part, PendingImage
from penstock.transforms.decode.image.decoder import RecordDecoder
from penstock.transforms.decode.image.header import Header
from penstock.transforms.decode.image.jpeg import decode_part
from penstock.transforms.decode.image.pixels import CHANNELS, upright


@register("decode", "scaled")
class ScaledDecoder(RecordDecoder):
    """Images of any kind as uint8 [H, W, C]; a JPEG larger than it is needed is decoded smaller.

    Where an augmentation stack begins with a crop that it resizes, or with a resize and a centre
    crop, JPEG files are decoded at 1/2, 1/4 or 1/8 of their size: the smallest that has no fewer
    pixels in the crop than it is resized to. The pixels differ from those of ``decode=image``,
    as if the image had been shrunk before: less aliasing, and crops that begin at whole pixels
    of the smaller image. What is decoded is a function of file and crop alone. Other formats,
    crops that are not resized, and other stacks have the pixels of ``decode=image``.

    The smaller pixels are those of an overview, if the file has some (``pack.overviews=true``),
    else of DCT scaling, which saves less: all of the crop's entropy data is read all the same.

    Args:
        mode: ``RGB``, ``L`` (grey, one channel) or ``RGBA``; as for ``decode=image``.
        orientation: ``apply`` turns the image upright as its EXIF orientation says, ``ignore``
            leaves the pixels as they are stored.
        max_pixels: Larger images are refused from their header, before memory is allocated.
    """

    def __init__(
        self,
        *,
        mode: Literal["RGB", "L", "RGBA"] = "RGB",
        orientation: Literal["apply", "ignore"] = "apply",
        max_pixels: Annotated[int, Ge(1)] = 100_000_000,
    ) -> None:
        super().__init__(mode=mode, orientation=orientation, max_pixels=max_pixels)

    def _whole_because(self, header: Header | None) -> str | None:
        if header is None or header.format == "JPEG":
            return None
        return f"{header.format}, only a JPEG can be decoded at a scale"

    def _pending(self, data: bytes, header: Header) -> PendingImage:
        height, width = header.height, header.width
        if self._turned(header) and header.orientation >= 5:
            height, width = width, height
        decode = functools.partial(self._decoded, data, header)
        return PendingImage((height, width, CHANNELS[self.mode]), decode, decode)

    def _decoded(self, data: bytes, header: Header, box: Box | None, factor: int = 1) -> Part:
        if not self._turned(header):
            return decode_part(data, header, self.mode, box, factor)
        image, _, _ = decode_part(data, header, self.mode, None, factor)
        return upright(image, header.orientation), 0, 0

    def _turned(self, header: Header) -> bool:
        return self.orientation == "apply" and header.orientation != 1
