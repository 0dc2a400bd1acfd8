"""Image decoding at a scale: photographs much larger than the crop, pixels not quite the same."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge

from datasets.pending_image import PendingImage
from pipeline.registry import register
from transforms.formats.image_pixels import decode_file, upright
from transforms.formats.jpeg_pixels import decode_around, decode_reduced
from transforms.formats.opencv_pixels import CHANNELS
from transforms.record_decoder import RecordDecoder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from datasets.pending_image import Box
    from transforms.formats.header import Header

    Image = NDArray[np.uint8]


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
        super().__init__("decode/scaled", mode=mode, orientation=orientation, max_pixels=max_pixels)

    def _whole_because(self, header: Header | None) -> str | None:
        if header is None or header.format == "JPEG":
            return None
        return f"{header.format}, only a JPEG can be decoded at a scale"

    def _pending(self, data: bytes, header: Header) -> PendingImage:
        height, width = header.height, header.width
        if self._turned(header) and header.orientation >= 5:
            height, width = width, height
        return PendingImage(
            (height, width, CHANNELS[self.mode]),
            functools.partial(self._around, data, header),
            functools.partial(self._reduced, data, header),
        )

    def _around(self, data: bytes, header: Header, box: Box | None) -> tuple[Image, int, int]:
        if not self._turned(header):
            return decode_around(data, header, self.mode, box)
        return decode_file(data, header, self.mode, self.orientation), 0, 0

    def _reduced(
        self, data: bytes, header: Header, box: Box | None, factor: int
    ) -> tuple[Image, int, int]:
        if not self._turned(header):
            return decode_reduced(data, header, self.mode, box, factor)
        image, _, _ = decode_reduced(data, header, self.mode, None, factor)
        return upright(image, header.orientation), 0, 0

    def _turned(self, header: Header) -> bool:
        return self.orientation == "apply" and header.orientation != 1
