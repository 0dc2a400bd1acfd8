"""Decode masks: PNG files or arrays of class ids or colours, and the masks of boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import RecordError
from penstock.transforms.decode.image.pillow import (
    PNG_SIGNATURE,
    damage_as_record_error,
    open_picture,
)

Ids = NDArray[np.integer]


def decode_mask(data: Any, *, colours: Mapping[int, int], max_pixels: int) -> Ids:
    """Return the class ids of a mask: of a PNG or an array of ids, or RGB with `colours`.

    `colours` are ids by 0xRRGGBB, also of greys. Without them, indices of a palette are the ids.
    """
    if not isinstance(data, np.ndarray):
        return _decode_png(bytes(data), colours, max_pixels)
    if colours and data.dtype == np.uint8 and data.shape[2:] == (3,):
        return _by_colour(data, colours)
    if data.ndim == 2 and data.dtype.kind in "iu":
        return _by_colour(data, colours) if colours else data
    raise RecordError(f"a mask of {data.dtype} {list(data.shape)}, expected integer [H, W]")


def _decode_png(data: bytes, colours: Mapping[int, int], max_pixels: int) -> Ids:
    if not data.startswith(PNG_SIGNATURE):
        raise RecordError("a mask that is no PNG; lossy formats change class ids")
    picture = open_picture(data)
    width, height = picture.size
    if not 0 < width * height <= max_pixels:
        raise RecordError(f"a mask of {width}x{height} pixels, expected 1 to {max_pixels:,}")
    depth, mode = data[24], picture.mode
    if mode not in ("1", "L", "I;16", "P", "RGB") or (mode == "RGB" and depth != 8):
        raise RecordError("a mask with alpha or of 48 bits; save class ids as grey or palette PNG")
    with damage_as_record_error():
        ids = np.array(picture.convert("RGB") if colours and mode in ("1", "P") else picture)
    if mode == "RGB" or colours:
        return _by_colour(ids, colours)
    if mode == "L" and depth < 8:
        ids //= 255 // ((1 << depth) - 1)  # Pillow widens such greys to 0 .. 255
    return ids.astype(np.uint8) if mode == "1" else ids


def _by_colour(values: NDArray[Any], colours: Mapping[int, int]) -> Ids:
    """Return the ids of greys [H, W] or of colours [H, W, 3]."""
    if not colours:
        raise RecordError("a mask of RGB colours; say whose they are: dataset.decode.mask_colors")
    if values.ndim == 2:
        found = values.astype(np.int64) * 0x010101
    else:
        found = values.astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])
    known = np.array(sorted(colours))
    ids = np.array([colours[colour] for colour in known.tolist()])
    places = np.minimum(np.searchsorted(known, found), len(known) - 1)
    wrong = np.argwhere(known[places] != found)
    if len(wrong):
        row, column = wrong[0].tolist()
        raise RecordError(
            f"a mask with the colour {values[row, column].tolist()} at {column}, {row}, which is "
            f"not among dataset.decode.mask_colors"
        )
    narrow: Ids = ids.astype(np.uint8 if ids.max() < 256 else np.uint16)
    return narrow[places]


def decode_box_masks(encoded: Any, shape: tuple[int, int]) -> NDArray[np.uint8]:
    """Decode texts ``height,width,counts`` of COCO to masks, uint8 [N, H, W]; arrays pass."""
    if isinstance(encoded, np.ndarray):
        return encoded
    masks = np.zeros((len(encoded), *shape), np.uint8)
    for mask, one in zip(masks, encoded, strict=True):
        try:
            height, width, counts = one.split(",", 2)
            sides, runs = (int(height), int(width)), _runs_of(counts.encode())
        except (AttributeError, ValueError):
            raise RecordError("the mask of a box is damaged: expected height,width,runs") from None
        if sides != shape:
            raise RecordError(
                f"the mask of a box has {width}x{height} pixels, the image {shape[1]}x{shape[0]}"
            )
        if min(runs, default=0) < 0 or sum(runs) != mask.size:
            raise RecordError("the mask of a box is damaged: its runs do not cover the image")
        marks = np.arange(len(runs), dtype=np.uint8) & 1
        mask[:] = np.repeat(marks, runs).reshape(shape[::-1]).T
    return masks


def _runs_of(counts: bytes) -> Sequence[int]:
    """Decode COCO's run lengths: column by column, background first, 5 bits a character.

    From the third run on, each is the difference to the run before the last (``maskApi.c``).
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
    return runs
