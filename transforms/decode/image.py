"""Image decoding: JPEG, PNG, WebP, BMP and TIFF bytes to uint8 [H, W, C]; damage raises."""

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
)
from transforms.formats.jpeg_pixels import decode_around
from transforms.formats.opencv_pixels import CHANNELS
from transforms.formats.sniff import read_header

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from transforms.formats.header import Header

    Image = NDArray[np.uint8]

Mode = Literal["RGB", "L", "RGBA"]


@register("decode", "image")
class ImageDecoder:
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
    """

    def __init__(
        self,
        *,
        mode: Mode = "RGB",
        orientation: Literal["apply", "ignore"] = "apply",
        region: Literal["exact", "whole"] = "exact",
        max_pixels: Annotated[int, Ge(1)] = 100_000_000,
    ) -> None:
        if mode not in CHANNELS:
            raise ValueError(f"decode/image: mode {mode!r}, expected RGB, L or RGBA")
        if orientation not in ("apply", "ignore"):
            raise ValueError(f"decode/image: orientation {orientation!r}, expected apply or ignore")
        if region not in ("exact", "whole"):
            raise ValueError(f"decode/image: region {region!r}, expected exact or whole")
        self.mode = mode
        self.orientation = orientation
        self.region = region
        self.max_pixels = max_pixels

    def __call__(self, record: Record) -> Sample:
        """Decode the record's ``image``; its other fields pass unchanged.

        Args:
            record: A record with an encoded ``image``, or one that is decoded: uint8 [H, W, C].

        Returns:
            The sample, with ``image`` uint8 [H, W, C], ``index`` and ``key``. What is decoded
            and has `mode` is passed on, if it may be written to.

        Raises:
            ValueError: There is no image, it is damaged or too large; one line.
        """
        image = self.decode(image_field(record))
        return {**record.fields, "image": image, "index": record.index, "key": record.key}

    def defer(self, record: Record) -> Sample:
        """Like a call, but an image of which parts can be decoded alone stays pending.

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
            return None if self.region == "exact" else "dataset.decode.region=whole"
        return self._whole_because(read_header(bytes(image)))

    def decode(self, data: Any) -> Image:
        """Decode one file.

        Args:
            data: The file's bytes, or pixels: uint8 [H, W, C], grey, RGB or RGBA.

        Returns:
            uint8 [H, W, C], 0..255, which may be written to; a new array unless pixels are
            given.

        Raises:
            ValueError: It is damaged, too large, or no image that we read; one line.
        """
        if hasattr(data, "dtype"):
            import numpy as np

            check_array(data)
            return np.require(array_around(data, self.mode, None)[0], requirements=("C", "W"))
        data = bytes(data)
        header = read_header(data)
        check_size(header, self.max_pixels)
        return decode_file(data, header, self.mode, self.orientation)

    def _deferred(self, data: Any) -> Any:
        if hasattr(data, "dtype"):
            if self.region == "whole":
                return self.decode(data)
            check_array(data)
            shape = (*data.shape[:2], CHANNELS[self.mode])
            return PendingImage(shape, functools.partial(array_around, data, self.mode))
        data = bytes(data)
        header = read_header(data)
        check_size(header, self.max_pixels)
        if self._whole_because(header) is not None:
            return decode_file(data, header, self.mode, self.orientation)
        shape = (header.height, header.width, CHANNELS[self.mode])
        return PendingImage(shape, functools.partial(decode_around, data, header, self.mode))

    def _whole_because(self, header: Header) -> str | None:
        if self.region == "whole":
            return "dataset.decode.region=whole"
        if header.format != "JPEG":
            return f"{header.format}, only parts of a JPEG can be decoded"
        if header.scan is None:
            return "a progressive or unusual JPEG"
        if self.orientation == "apply" and header.orientation != 1:
            return "its EXIF orientation is not upright"
        return None
