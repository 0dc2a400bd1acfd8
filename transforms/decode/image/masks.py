"""Decode masks: PNG files or arrays of class ids or colours, and the masks of boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import RecordError
from penstock.transforms.decode.image.pillow import check_png, damage_told, open_picture

Colours = Mapping[int, int]
"""Class id by colour, 0xRRGGBB."""

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _RGB, _PALETTE = 0, 2, 3
_ROUNDING = 0.02


def decode_mask(data: Any, *, colours: Colours | None, max_pixels: int) -> NDArray[np.integer]:
    """Return the class ids of a mask.

    Args:
        data: A PNG: grey of up to 16 bits, a palette, whose *indices* are the ids, or RGB with
            `colours`. Or an array: ids, integer [H, W], or uint8 [H, W, 3] with `colours`.
        colours: Class id by colour; applies to RGB, to 8-bit grey, and to arrays.
        max_pixels: Larger masks are refused.

    Returns:
        uint8 or uint16 [H, W], a new array; an array of ids passes as it is.

    Raises:
        RecordError: The mask is damaged, too large or of another kind, or a colour is unknown.
    """
    if isinstance(data, np.ndarray):
        if colours and data.dtype == np.uint8 and data.shape[2:] == (3,):
            return _by_colour(data, colours)
        if data.ndim == 2 and data.dtype.kind in "iu":
            return _by_grey(data, colours) if colours else data
        raise RecordError(f"a mask of {data.dtype} {list(data.shape)}, expected integer [H, W]")
    data = bytes(data)
    if not data.startswith(_SIGNATURE):
        raise RecordError("a mask that is no PNG; lossy formats change class ids")
    check_png(data)
    picture = open_picture(data, "PNG")
    width, height = picture.size
    if width * height > max_pixels or not width or not height:
        raise RecordError(f"a mask of {width}x{height} pixels, at most {max_pixels:,}")
    depth, colour = data[24], data[25]
    if colour not in (_GREY, _RGB, _PALETTE) or (colour == _RGB and depth != 8):
        raise RecordError("a mask with alpha or of 48 bits; save class ids as grey or palette PNG")
    with damage_told("PNG"):
        ids = np.array(picture)
    if colour == _RGB:
        return _by_colour(ids, colours)
    if colour == _GREY and depth in (2, 4):
        ids //= 255 // ((1 << depth) - 1)  # Pillow widens such greys to 0 .. 255
    if colour == _GREY and depth == 8 and colours:
        return _by_grey(ids, colours)
    return ids.astype(np.uint8) if depth == 1 else ids


def _by_grey(values: NDArray[np.integer], colours: Colours) -> NDArray[np.integer]:
    if values.dtype != np.uint8:
        wrong = (values < 0) | (values > 255)
        if wrong.any():
            row, column = np.argwhere(wrong)[0].tolist()
            raise RecordError(
                f"a mask with the value {values[row, column]} at {column}, {row}, which is not "
                f"among dataset.decode.mask_colors"
            )
        values = values.astype(np.uint8)
    return _by_colour(np.broadcast_to(values[..., None], (*values.shape, 3)), colours)


def _by_colour(rgb: NDArray[np.uint8], colours: Colours | None) -> NDArray[np.integer]:
    if not colours:
        raise RecordError("a mask of RGB colours; say whose they are: dataset.decode.mask_colors")
    red, green, blue = (rgb[..., k].astype(np.uint32) for k in range(3))
    found = (red << 16) | (green << 8) | blue
    known = np.array(sorted(colours), np.uint32)
    ids = np.array([colours[colour] for colour in known.tolist()])
    places = np.minimum(np.searchsorted(known, found), len(known) - 1)
    wrong = known[places] != found
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        colour = rgb[row, column].tolist()
        raise RecordError(
            f"a mask with the colour {colour} at {column}, {row}, which is not among "
            f"dataset.decode.mask_colors"
        )
    narrow: NDArray[np.integer] = ids.astype(np.uint8 if ids.max() < 256 else np.uint16)
    return narrow[places]


def check_stated_size(stated: Any, shape: Sequence[int], *, scaled: bool, orientation: str) -> None:
    """Raise `RecordError` if an image differs from the size in its annotations.

    Args:
        stated: Width and height, [2]; 0 if unknown.
        shape: Height and width of the image.
        scaled: Whether annotations are shares of the image, which only a rotation invalidates.
        orientation: The decoder's: ``apply`` or ``ignore``.
    """
    (width, height), (stated_width, stated_height) = shape[1::-1], map(int, stated)
    if not stated_width or (width, height) == (stated_width, stated_height):
        return
    said = (
        f"its annotations state an image of {stated_width}x{stated_height} pixels, the image has "
        f"{width}x{height}"
    )
    straight, turned = stated_width * height, stated_width * width
    is_turned = not _alike(straight, stated_height * width) and _alike(
        turned, stated_height * height
    )
    if is_turned:
        other = "ignore" if orientation == "apply" else "apply"
        raise RecordError(
            f"{said}: one is turned, as by an EXIF orientation; correct the stated size, or, if "
            f"the annotations are of the other orientation, type "
            f"dataset.decode.orientation={other}"
        )
    if not scaled:
        raise RecordError(
            f"{said}; correct the stated size, or scale the annotations of label files: "
            f"dataset.annotations.rescale=true"
        )


def check_boxes(boxes: Any, shape: Sequence[int]) -> None:
    """Refuse boxes in pixels, [N, 4], that begin beyond the right or bottom edge of the image."""
    height, width = shape[:2]
    corners = rows_of(boxes, 4)
    outside = (corners[:, 0] >= width) | (corners[:, 1] >= height)
    if outside.any():
        box = ", ".join(f"{edge:g}" for edge in corners[outside][0].tolist())
        raise RecordError(
            f"its box [{box}] lies outside of its image of {width}x{height} pixels; correct it, or "
            f"state the size of the image that it is of"
        )


def rows_of(values: Any, count: int) -> NDArray[np.float32]:
    """Return boxes or keypoints as float32 [N, count]."""
    try:
        return np.asarray(values, np.float32).reshape(-1, count)
    except (TypeError, ValueError):
        raise RecordError(f"boxes or keypoints are not rows of {count} numbers") from None


def _alike(first: int, second: int) -> bool:
    """Return whether two products of sides differ only by rounding."""
    return abs(first - second) <= _ROUNDING * max(first, second)


def decode_box_masks(encoded: Any, shape: Sequence[int]) -> NDArray[np.uint8]:
    """Decode the masks of an image's boxes to uint8 [N, H, W], 1 inside the object.

    Each is a text ``height,width,counts`` with COCO's compressed run lengths. Decoded arrays pass.
    Raises `RecordError` if a mask is damaged or of another size.
    """
    if isinstance(encoded, np.ndarray):
        return encoded
    height, width = shape[:2]
    masks = np.zeros((len(encoded), height, width), np.uint8)
    for row, one in enumerate(encoded):
        try:
            sides, runs = (*map(int, one.split(",", 2)[:2]),), one.split(",", 2)[2].encode()
        except (AttributeError, IndexError, ValueError):
            raise RecordError("the mask of a box is damaged: expected height,width,runs") from None
        if sides != (height, width):
            raise RecordError(
                f"the mask of a box has {sides[1]}x{sides[0]} pixels, the image {width}x{height}"
            )
        _fill_runs(masks[row], runs)
    return masks


def _fill_runs(mask: NDArray[np.uint8], counts: bytes) -> None:
    """Fill a mask from COCO's run lengths: column by column, background first, 5 bits a character.

    From the third run on, the file stores the difference to the run before the last; see
    ``rleFrString`` in COCO's ``maskApi.c``.
    """
    runs: list[int] = []
    value = shift = 0
    for character in counts:
        bits = character - 48
        value |= (bits & 0x1F) << shift
        shift += 5
        if not bits & 0x20:
            if bits & 0x10:
                value -= 1 << shift
            runs.append(value + (runs[-2] if len(runs) > 2 else 0))
            value = shift = 0
    if min(runs, default=0) < 0 or sum(runs) != mask.size:
        raise RecordError("the mask of a box is damaged: its runs do not cover the image")
    marks = np.arange(len(runs), dtype=np.uint8) & 1
    mask[:] = np.repeat(marks, runs).reshape(mask.shape[::-1]).T
