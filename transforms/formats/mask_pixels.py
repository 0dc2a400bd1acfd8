"""Masks: PNG files whose values, or colours, are class ids."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transforms.formats.opencv_pixels import imdecode
from transforms.formats.png import read_header

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Colours = Mapping[int, int]
"""Class id by colour, 0xRRGGBB."""

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _RGB, _PALETTE = 0, 2, 3


def decode_mask(data: Any, *, colours: Colours | None, max_pixels: int) -> NDArray[np.integer]:
    """The class ids of a mask.

    Args:
        data: A PNG: grey of up to 16 bits, or a palette, whose *indices* are the ids; RGB with
            `colours`. Or ids already: integer [H, W].
        colours: Class id by colour of RGB masks.
        max_pixels: Larger masks are refused.

    Returns:
        uint8 or uint16 [H, W], a new array; what is no file is passed on.

    Raises:
        ValueError: It is no such file, damaged, too large, or a colour has no id; one line.
    """
    if hasattr(data, "dtype"):
        if data.ndim != 2 or data.dtype.kind not in "iu":
            raise ValueError(f"a mask of {data.dtype} {list(data.shape)}, expected integer [H, W]")
        return data
    data = bytes(data)
    if not data.startswith(_SIGNATURE):
        raise ValueError("a mask that is no PNG; lossy formats change class ids")
    header = read_header(data)
    if header.width * header.height > max_pixels or not header.width or not header.height:
        raise ValueError(f"a mask of {header.width}x{header.height} pixels, at most {max_pixels:,}")
    depth, colour = data[24], data[25]
    if colour == _RGB and depth == 8:
        return _by_colour(imdecode(data, "PNG"), colours)
    if colour not in (_GREY, _PALETTE):
        raise ValueError("a mask with alpha or of 48 bits; save class ids as grey or palette PNG")
    ids = imdecode(_as_grey(data) if colour == _PALETTE else data, "PNG")
    if depth < 8:
        ids //= 255 // ((1 << depth) - 1)  # the decoder widens such greys to 0 .. 255
    return ids


def _as_grey(data: bytes) -> bytes:
    """A palette PNG as a grey one of the same values."""
    parts, at = [_SIGNATURE], len(_SIGNATURE)
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IHDR":
            body = data[at + 8 : at + 17] + bytes([_GREY]) + data[at + 18 : at + 21]
            parts += [data[at : at + 8], body, struct.pack(">I", zlib.crc32(kind + body))]
        elif kind in (b"IDAT", b"IEND"):
            parts.append(data[at : at + 12 + length])
        at += 12 + length
    return b"".join(parts)


def _by_colour(bgr: NDArray[np.uint8], colours: Colours | None) -> NDArray[np.integer]:
    import numpy as np

    if not colours:
        raise ValueError("a mask of RGB colours; say whose they are: dataset.decode.mask_colors")
    blue, green, red = (bgr[..., k].astype(np.uint32) for k in range(3))
    found = (red << 16) | (green << 8) | blue
    known = np.array(sorted(colours), np.uint32)
    ids = np.array([colours[colour] for colour in known.tolist()])
    places = np.minimum(np.searchsorted(known, found), len(known) - 1)
    wrong = known[places] != found
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        colour = bgr[row, column, ::-1].tolist()
        raise ValueError(
            f"a mask with the colour {colour} at {column}, {row}, which is not among "
            f" dataset.decode.mask_colors"
        )
    narrow: NDArray[np.integer] = ids.astype(np.uint8 if ids.max() < 256 else np.uint16)
    return narrow[places]
