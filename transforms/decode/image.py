"""Image decoding: JPEG, PNG, WebP, BMP and TIFF bytes to uint8 [H, W, C]; damage raises."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge

from datasets.pending_image import PendingImage
from pipeline.registry import register
from transforms.formats.jpeg_pixels import cut_around, decode_around
from transforms.formats.opencv_pixels import CHANNELS
from transforms.record_decoder import RecordDecoder

if TYPE_CHECKING:
    from transforms.formats.header import Header

Mode = Literal["RGB", "L", "RGBA"]


@register("decode", "image")
class ImageDecoder(RecordDecoder):
    """Images of any kind as uint8 [H, W, C] in one mode.

    Grey, palette, alpha, CMYK and 16 bit all arrive as `mode`. Alpha is dropped, not blended
    with a background; 16 bits are cut to their upper 8; colour becomes grey by the weights of
    ITU-R BT.601; colour profiles are not applied.

    Args:
        mode: ``RGB``, ``L`` (grey, one channel) or ``RGBA``.
        orientation: ``apply`` turns the image upright as its EXIF orientation says, ``ignore``
            leaves the pixels as they are stored; the same for every format.
        region: ``exact`` decodes no more of a baseline JPEG than an augmentation stack that
            begins with a crop needs, with the pixels of the whole image. Damage that lies
            elsewhere in the file, or shows only at its end, is then not seen; ``whole``
            always decodes everything.
        max_pixels: Larger images are refused from their header, before memory is allocated.
        mask_colors: Where masks are RGB pictures: their colours, [r, g, b] by class id.
    """

    parts_are_exact = True

    def __init__(
        self,
        *,
        mode: Mode = "RGB",
        orientation: Literal["apply", "ignore"] = "apply",
        region: Literal["exact", "whole"] = "exact",
        max_pixels: Annotated[int, Ge(1)] = 100_000_000,
        mask_colors: list[list[int]] | None = None,
    ) -> None:
        super().__init__(
            "decode/image",
            mode=mode,
            orientation=orientation,
            max_pixels=max_pixels,
            mask_colors=mask_colors,
        )
        if region not in ("exact", "whole"):
            raise ValueError(f"decode/image: region {region!r}, expected exact or whole")
        self.region = region

    def _whole_because(self, header: Header | None) -> str | None:
        if self.region == "whole":
            return "dataset.decode.region=whole"
        if header is None:
            return None
        if header.format != "JPEG":
            return f"{header.format}, only parts of a JPEG can be decoded"
        if header.scan is None:
            return "a progressive or unusual JPEG"
        if self.orientation == "apply" and header.orientation != 1:
            return "its EXIF orientation is not upright"
        return None

    def _pending(self, data: bytes, header: Header) -> PendingImage:
        shape = (header.height, header.width, CHANNELS[self.mode])
        return PendingImage(
            shape,
            functools.partial(decode_around, data, header, self.mode),
            cut=functools.partial(cut_around, data, header, self.mode),
        )
