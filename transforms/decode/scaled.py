"""Decode photographs at a smaller scale if the crop is much smaller."""

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
    """Decode images to uint8 [H, W, C]; decode a JPEG smaller if the crop is resized anyway.

    The augmentation stack must begin with a resized crop, or with a resize and a centre crop. JPEG
    files are then decoded at 1/2, 1/4 or 1/8 of their size, the smallest scale at which the crop
    has at least the pixels of its result. Pixels differ from ``decode=image`` as if the image had
    been shrunk before: less aliasing, and crops begin at whole pixels of the smaller image. The
    pixels depend only on file and crop. Other formats and stacks get the pixels of
    ``decode=image``.

    DCT scaling still reads all entropy data of the crop. If the images are much larger than the
    result, store smaller images with ``pack.short_side``.

    Args:
        mode: ``RGB``, ``L`` (grey, one channel) or ``RGBA``; as for ``decode=image``.
        orientation: ``apply`` rotates the image by its EXIF orientation, ``ignore`` keeps the
            pixels as stored.
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
