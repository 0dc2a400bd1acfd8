"""JPEG bytes to pixels, all of them or those around a box; damage raises."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from transforms.formats.jpeg_region import cut_part
from transforms.formats.opencv_pixels import CHANNELS, convert, imdecode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from datasets.pending_image import Box
    from transforms.formats.header import Header

    Image = NDArray[np.uint8]

_COLORSPACE = {"RGB": "RGB", "L": "GRAY", "RGBA": "RGBA"}
# What simplejpeg says of files that are whole but that it cannot read.
_REFUSALS = ("Could not determine subsampling", "Unsupported", "not supported", "not implemented")
# What it says of markers among the pixels, of which a baseline file of one scan has none.
_STRAY_MARKERS = ("Unsupported marker type", "Unsupported JPEG process")
_EXTRANEOUS = re.compile(r"(\d+) extraneous bytes before marker 0xd9")


def decode_around(
    data: bytes, header: Header, mode: str, box: Box | None
) -> tuple[Image, int, int]:
    """Decode what a box needs, or everything; the pixels, and the column and row they begin at.

    Whatever the decoder says of a part, the whole image decides whether the file is damaged:
    it is decoded then, and what it forgives is forgiven.
    """
    import numpy as np
    import simplejpeg

    assert header.scan is not None
    part = cut_part(data, header.scan, box) if box is not None else None
    if part is not None:
        image: Image = np.empty((part.height, part.width, CHANNELS[mode]), np.uint8)
        try:
            simplejpeg.decode_jpeg(part.data, _COLORSPACE[mode], buffer=image.reshape(-1))
        except ValueError as error:
            # The first complaint is the one that is reported, so nothing hides behind this one.
            left_over = not part.exhaustive and _EXTRANEOUS.search(str(error))
            if left_over:
                return image, part.left, part.top
        else:
            return image, part.left, part.top
    return decode_whole(data, header, mode), 0, 0


def decode_whole(data: bytes, header: Header, mode: str) -> Image:
    """Decode everything, and leave out what pads the image."""
    import numpy as np

    image = _decode_stored(data, header, mode)
    return np.ascontiguousarray(image[:, : header.width]) if header.padding else image


def _decode_stored(data: bytes, header: Header, mode: str) -> Image:
    """Decode strictly; what is only unusual goes to another library, what is damaged raises."""
    import numpy as np
    import simplejpeg

    columns = header.width + header.padding
    image: Image = np.empty((header.height, columns, CHANNELS[mode]), np.uint8)
    if header.components == 4 and mode == "L":  # CMYK has no grey of its own
        return convert(_decode_stored(data, header, "RGB")[..., ::-1], "L")
    try:
        # The buffer keeps its pixels when the decoder complains after the last of them.
        simplejpeg.decode_jpeg(data, _COLORSPACE[mode], buffer=image.reshape(-1))
    except ValueError as error:
        cause = str(error)
        extraneous = _EXTRANEOUS.search(cause)
        if extraneous and int(extraneous[1]) <= max(64, len(data) // 64):
            # Padding between the pixels and the end, which some cameras write. Much of it is
            # something else: pixels that a damaged header hides.
            return image
        stray = header.scan is not None and cause.startswith(_STRAY_MARKERS)
        if not stray and any(refusal in cause for refusal in _REFUSALS):
            return _decode_unusual(data, mode)
        raise ValueError(f"damaged JPEG: {cause}") from None
    return image


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
