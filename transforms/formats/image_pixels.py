"""The pixels of one image file of any format, or of an array that stands in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transforms.formats.jpeg_pixels import decode_whole
from transforms.formats.opencv_pixels import CHANNELS, convert, imdecode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from datasets.pending_image import Box
    from datasets.sample import Record
    from transforms.formats.header import Header

    Image = NDArray[np.uint8]


def image_field(record: Record) -> Any:
    """The record's ``image``: a file, or pixels.

    Raises:
        ValueError: There is none.
    """
    data = record.fields.get("image")
    if data is None:
        names = ", ".join(record.fields) or "none"
        raise ValueError(
            f"no field 'image' to decode, fields: {names}; rename one with dataset.keys"
        )
    return data


def check_size(header: Header, max_pixels: int) -> None:
    """Refuse an image without pixels or with more than `max_pixels`, before memory is taken."""
    if header.width <= 0 or header.height <= 0:
        raise ValueError(f"damaged {header.format}: its size is {header.width}x{header.height}")
    if header.width * header.height > max_pixels:
        raise ValueError(
            f"{header.width}x{header.height} is {header.width * header.height:,} pixels, "
            f"at most {max_pixels:,} are allowed; raise dataset.decode.max_pixels"
        )


def decode_file(data: bytes, header: Header, mode: str, orientation: str) -> Image:
    """Decode all of a file.

    Args:
        data: The file.
        header: Its header.
        mode: ``RGB``, ``L`` or ``RGBA``.
        orientation: ``apply`` turns the image upright.

    Returns:
        uint8 [H, W, C]; a new array.

    Raises:
        ValueError: It is damaged.
    """
    if header.format == "JPEG":
        image = decode_whole(data, header, mode)
    else:
        image = _decode_others(data, header, mode)
    if orientation == "apply" and header.orientation != 1:
        image = upright(image, header.orientation)
    return image


def check_array(image: NDArray[Any]) -> None:
    """Refuse what is no decoded image, uint8 [H, W, C] in grey, RGB or RGBA."""
    if image.dtype.str != "|u1" or image.ndim != 3 or image.shape[2] not in CHANNELS.values():
        raise ValueError(
            f"an image of {image.dtype} {list(image.shape)}; expected a file, or uint8 [H, W, C] "
            f"with 1, 3 or 4 channels"
        )
    if not image.size:
        raise ValueError(f"an image of {image.shape[1]}x{image.shape[0]} pixels")


def array_around(image: Image, mode: str, box: Box | None) -> tuple[Image, int, int]:
    """The pixels of a box, or all, of a decoded image; and the column and row they begin at.

    Args:
        image: uint8 [H, W, C] in grey, RGB or RGBA.
        mode: What it is turned into.
        box: The box within the image; None for all of it.

    Returns:
        A view of `image` where nothing has to be changed. One in one piece, which whoever comes
        next could take for an array of its own, is a copy if `image` may not be written to.
    """
    left, top = (box[0], box[1]) if box is not None else (0, 0)
    if box is not None:
        image = image[box[1] : box[3], box[0] : box[2]]
    if image.shape[2] != CHANNELS[mode]:
        image = convert(image[..., ::-1] if image.shape[2] == 3 else _swapped(image), mode)
    if image.flags.c_contiguous and not image.flags.writeable:
        image = image.copy()
    return image, left, top


def upright(image: Image, orientation: int) -> Image:
    """Turn and mirror an image by its EXIF orientation, 2 .. 8."""
    import numpy as np

    if orientation >= 5:
        image = image.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    return np.ascontiguousarray(image)


def _swapped(image: Image) -> Image:
    """Grey as [H, W], RGBA as BGRA: the orders in which OpenCV decodes."""
    return image[..., 0] if image.shape[2] == 1 else image[..., [2, 1, 0, 3]]


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
