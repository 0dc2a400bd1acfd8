"""Image decoding: JPEG, PNG, WebP, BMP and TIFF bytes to uint8 [H, W, C]; damage raises."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge

from datasets.sample import Record, Sample
from pipeline.registry import register
from transforms.formats.sniff import read_header

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from transforms.formats.header import Header

    Image = NDArray[np.uint8]

Mode = Literal["RGB", "L", "RGBA"]

_JPEG_COLORSPACE = {"RGB": "RGB", "L": "GRAY", "RGBA": "RGBA"}
_CHANNELS = {"RGB": 3, "L": 1, "RGBA": 4}
# What simplejpeg says of files that are whole but that it cannot read.
_REFUSALS = ("Could not determine subsampling", "Unsupported", "not supported", "not implemented")
_EXTRANEOUS = re.compile(r"(\d+) extraneous bytes before marker 0xd9")


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
        max_pixels: Larger images are refused from their header, before memory is allocated.
    """

    def __init__(
        self,
        *,
        mode: Mode = "RGB",
        orientation: Literal["apply", "ignore"] = "apply",
        max_pixels: Annotated[int, Ge(1)] = 100_000_000,
    ) -> None:
        if mode not in _CHANNELS:
            raise ValueError(f"decode/image: mode {mode!r}, expected RGB, L or RGBA")
        if orientation not in ("apply", "ignore"):
            raise ValueError(f"decode/image: orientation {orientation!r}, expected apply or ignore")
        self.mode = mode
        self.orientation = orientation
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
        data = record.fields.get("image")
        if data is None:
            names = ", ".join(record.fields) or "none"
            raise ValueError(
                f"no field 'image' to decode, fields: {names}; rename one with dataset.keys"
            )
        image = self.decode(data)
        return {**record.fields, "image": image, "index": record.index, "key": record.key}

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
        if header.format == "JPEG":
            image = _decode_jpeg(data, header, self.mode)
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


def _decode_jpeg(data: bytes, header: Header, mode: str) -> Image:
    """Decode strictly; what is only unusual goes to another library, what is damaged raises."""
    import numpy as np
    import simplejpeg

    image: Image = np.empty((header.height, header.width, _CHANNELS[mode]), np.uint8)
    if header.components == 4 and mode == "L":  # CMYK has no grey of its own
        return _convert(_decode_jpeg(data, header, "RGB")[..., ::-1], "L")
    try:
        # The buffer keeps its pixels when the decoder complains after the last of them.
        simplejpeg.decode_jpeg(data, _JPEG_COLORSPACE[mode], buffer=image.reshape(-1))
    except ValueError as error:
        cause = str(error)
        extraneous = _EXTRANEOUS.search(cause)
        if extraneous and int(extraneous[1]) <= max(64, len(data) // 64):
            # Padding between the pixels and the end, which some cameras write. Much of it is
            # something else: pixels that a damaged header hides.
            return image
        if any(refusal in cause for refusal in _REFUSALS):
            return _decode_unusual_jpeg(data, mode)
        raise ValueError(f"damaged JPEG: {cause}") from None
    return image


def _decode_unusual_jpeg(data: bytes, mode: str) -> Image:
    """Decode with cv2, which keeps silent about missing pixels, and find them all the same.

    Where the pixels end early, the decoder reads on into whatever comes before the end
    marker. So bytes are put there: the pixels of a whole file do not change.
    """
    import numpy as np

    end = data.rfind(b"\xff\xd9")
    if end < 0:
        raise ValueError("truncated JPEG: it has no end marker")
    image = _imdecode(data, "JPEG")
    probe = _imdecode(data[:end] + b"\x55" * 256 + data[end:], "JPEG")
    if not np.array_equal(image, probe):
        raise ValueError("damaged JPEG: its pixels end before the image does")
    return _convert(image, mode)


def _decode_others(data: bytes, header: Header, mode: str) -> Image:
    import numpy as np

    if header.patches:
        patched = bytearray(data)
        for at, value in header.patches:
            patched[at : at + len(value)] = value
        data = bytes(patched)
    image = _imdecode(data, header.format)
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
    image = _convert(image, mode)
    if alpha is not None:
        image[..., 3] = alpha
    return image


def _imdecode(data: bytes, format_name: str) -> NDArray[Any]:
    """Decode with cv2 as it is stored: no rotation, all channels and bits, BGR order."""
    import cv2
    import numpy as np

    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise ValueError(f"damaged {format_name}: {error.err or 'it cannot be decoded'}") from None
    if image is None:
        raise ValueError(f"damaged {format_name}: it cannot be decoded")
    return image


def _convert(image: NDArray[Any], mode: str) -> Image:
    """Turn grey [H, W], BGR or BGRA of uint8 into `mode`, uint8 [H, W, C]."""
    import cv2
    import numpy as np

    stored = "GRAY" if image.ndim == 2 else {3: "BGR", 4: "BGRA"}[image.shape[2]]
    wanted = {"RGB": "RGB", "L": "GRAY", "RGBA": "RGBA"}[mode]
    if stored != wanted:
        image = cv2.cvtColor(np.ascontiguousarray(image), getattr(cv2, f"COLOR_{stored}2{wanted}"))
    return image if image.ndim == 3 else image[..., None]


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
