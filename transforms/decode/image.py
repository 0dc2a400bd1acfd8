"""Image decoding: JPEG, PNG, WebP, BMP and TIFF bytes to uint8 [H, W, C]; damage raises."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge

from datasets.pending_image import PendingImage
from datasets.sample import Record, Sample
from pipeline.registry import register
from transforms.formats.jpeg_pixels import decode_around, decode_whole
from transforms.formats.opencv_pixels import CHANNELS, convert, imdecode
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
            record: A record with an encoded ``image``.

        Returns:
            The sample, with ``image`` uint8 [H, W, C], ``index`` and ``key``.

        Raises:
            ValueError: There is no image, it is damaged or too large; one line.
        """
        image = self.decode(_image_bytes(record))
        return {**record.fields, "image": image, "index": record.index, "key": record.key}

    def defer(self, record: Record) -> Sample:
        """Like a call, but an image of which parts can be decoded alone stays pending.

        Args:
            record: A record with an encoded ``image``.

        Returns:
            The sample; its ``image`` is a `PendingImage` if `whole_because` has no reason.

        Raises:
            ValueError: There is no image, its header is damaged, or it is too large; where all
                of it is decoded, as in a call.
        """
        data = bytes(_image_bytes(record))
        header = read_header(data)
        self._check_size(header)
        image: Any
        if self.whole_because(header) is None:
            shape = (header.height, header.width, CHANNELS[self.mode])
            image = PendingImage(shape, functools.partial(decode_around, data, header, self.mode))
        else:
            image = self._decode(data, header)
        return {**record.fields, "image": image, "index": record.index, "key": record.key}

    def whole_because(self, header: Header) -> str | None:
        """Why an image with this header is decoded whole; None where its parts can be."""
        if self.region == "whole":
            return "dataset.decode.region=whole"
        if header.format != "JPEG":
            return f"{header.format}, only parts of a JPEG can be decoded"
        if header.scan is None:
            return "a progressive or unusual JPEG"
        if self.orientation == "apply" and header.orientation != 1:
            return "its EXIF orientation is not upright"
        return None

    def decode(self, data: bytes) -> Image:
        """Decode one file.

        Args:
            data: The file's bytes.

        Returns:
            uint8 [H, W, C], 0..255; a new array that may be written to.

        Raises:
            ValueError: It is damaged, too large, or no image that we read; one line.
        """
        data = bytes(data)
        header = read_header(data)
        self._check_size(header)
        return self._decode(data, header)

    def _decode(self, data: bytes, header: Header) -> Image:
        if header.format == "JPEG":
            image = decode_whole(data, header, self.mode)
        else:
            image = _decode_others(data, header, self.mode)
        if self.orientation == "apply" and header.orientation != 1:
            image = _upright(image, header.orientation)
        return image

    def _check_size(self, header: Header) -> None:
        if header.width <= 0 or header.height <= 0:
            raise ValueError(f"damaged {header.format}: its size is {header.width}x{header.height}")
        if header.width * header.height > self.max_pixels:
            raise ValueError(
                f"{header.width}x{header.height} is {header.width * header.height:,} pixels, "
                f"at most {self.max_pixels:,} are allowed; raise dataset.decode.max_pixels"
            )


def _image_bytes(record: Record) -> bytes:
    data: bytes | None = record.fields.get("image")
    if data is None:
        names = ", ".join(record.fields) or "none"
        raise ValueError(
            f"no field 'image' to decode, fields: {names}; rename one with dataset.keys"
        )
    return data


def _decode_others(data: bytes, header: Header, mode: str) -> Image:
    import numpy as np

    if header.patches:
        patched = bytearray(data)
        for at, value in header.patches:
            patched[at : at + len(value)] = value
        data = bytes(patched)
    image = imdecode(data, header.format)
    if image.shape[:2] != (header.height, header.width):
        # A GIF-like canvas or a reduced image: the limit on pixels was checked for another size.
        raise ValueError(
            f"damaged {header.format}: {image.shape[1]}x{image.shape[0]} pixels, "
            f"its header says {header.width}x{header.height}"
        )
    if mode == "RGBA" and header.format == "TIFF" and header.components == 2:
        raise ValueError("a grey TIFF with alpha cannot be read as RGBA; use mode RGB or L")
    alpha = None
    if mode == "RGBA" and header.transparent_grey is not None and image.ndim == 2:
        alpha = np.where(image == header.transparent_grey, 0, 255).astype(np.uint8)
    if image.dtype == np.uint16:
        image = (image >> 8).astype(np.uint8)
    elif image.dtype != np.uint8:
        raise ValueError(f"{header.format} of {image.dtype} pixels; expected 8 or 16 bits")
    image = convert(image, mode)
    if alpha is not None:
        image[..., 3] = alpha
    return image


def _upright(image: Image, orientation: int) -> Image:
    """Turn and mirror an image by its EXIF orientation, 2 .. 8."""
    import numpy as np

    if orientation >= 5:
        image = image.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    return np.ascontiguousarray(image)
