"""Image decoding at a scale: photographs much larger than the crop, pixels not quite the same."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge

from datasets.pending_image import PendingImage
from datasets.sample import Record, Sample
from pipeline.registry import register
from transforms.formats.image_pixels import (
    array_around,
    check_array,
    check_size,
    decode_file,
    image_field,
    upright,
)
from transforms.formats.jpeg_pixels import decode_around, decode_reduced
from transforms.formats.opencv_pixels import CHANNELS
from transforms.formats.sniff import read_header

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from datasets.pending_image import Box
    from transforms.formats.header import Header

    Image = NDArray[np.uint8]


@register("decode", "scaled")
class ScaledDecoder:
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
        if mode not in CHANNELS:
            raise ValueError(f"decode/scaled: mode {mode!r}, expected RGB, L or RGBA")
        if orientation not in ("apply", "ignore"):
            raise ValueError(
                f"decode/scaled: orientation {orientation!r}, expected apply or ignore"
            )
        self.mode = mode
        self.orientation = orientation
        self.max_pixels = max_pixels

    def __call__(self, record: Record) -> Sample:
        """Decode the record's ``image`` at its own size; its other fields pass unchanged.

        Args:
            record: A record with an ``image``, encoded or decoded.

        Returns:
            The sample, with ``image`` uint8 [H, W, C], ``index`` and ``key``.

        Raises:
            ValueError: There is no image, it is damaged or too large; one line.
        """
        image = self.decode(image_field(record))
        return {**record.fields, "image": image, "index": record.index, "key": record.key}

    def defer(self, record: Record) -> Sample:
        """Like a call, but an image that can be decoded in part or smaller stays pending.

        Args:
            record: A record with an ``image``, encoded or decoded.

        Returns:
            The sample; its ``image`` is a `PendingImage` if `whole_because` has no reason.

        Raises:
            ValueError: There is no image, its header is damaged, or it is too large; where all
                of it is decoded, as in a call.
        """
        return {
            **record.fields,
            "image": self._deferred(image_field(record)),
            "index": record.index,
            "key": record.key,
        }

    def whole_because(self, image: Any) -> str | None:
        """Why an image, encoded or decoded, is decoded whole; None where its parts can be.

        Raises:
            ValueError: Its header is damaged.
        """
        if hasattr(image, "dtype"):
            return None
        header = read_header(bytes(image))
        return None if header.format == "JPEG" else f"{header.format}, not a JPEG"

    def decode(self, data: Any) -> Image:
        """Decode one file at its own size, see `__call__`.

        Args:
            data: The file's bytes, or pixels: uint8 [H, W, C], grey, RGB or RGBA.

        Returns:
            uint8 [H, W, C], 0..255, which may be written to.

        Raises:
            ValueError: It is damaged, too large, or no image that we read; one line.
        """
        image = self._deferred(data)
        if isinstance(image, PendingImage):
            import numpy as np

            image = np.require(image.decode(None)[0], requirements=("C", "W"))
        return image

    def _deferred(self, data: Any) -> Any:
        if hasattr(data, "dtype"):
            check_array(data)
            shape = (*data.shape[:2], CHANNELS[self.mode])
            return PendingImage(shape, functools.partial(array_around, data, self.mode))
        data = bytes(data)
        header = read_header(data)
        check_size(header, self.max_pixels)
        if header.format != "JPEG":
            return decode_file(data, header, self.mode, self.orientation)
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
