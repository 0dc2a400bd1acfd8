"""A sample as a cell: its picture, with what is known of it drawn over it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from datasets.sample import BadSample
from pipeline.commands.preview.arrays import array_picture
from pipeline.commands.preview.cells import Cell, Entry, Legend
from pipeline.commands.preview.excerpts import OWN, lines_of
from pipeline.commands.preview.overlays import Classes, draw_boxes, draw_mask
from pipeline.commands.preview.placing import Placing
from pipeline.commands.preview.points import PointNames, draw_marks, keep_clear, marks_of
from pipeline.commands.preview.tables import FIELDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FEW = 8
_MOST_CHANNELS = 4


def draw_cell(
    sample: Any,
    title: str,
    *,
    size: int,
    classes: Mapping[str, Classes],
    points: PointNames | None = None,
    entries: tuple[Entry, ...] = (),
) -> Cell:
    """Draw one look at a sample.

    Args:
        sample: A sample with its image as [H, W, C] or [H, W], or a bad sample.
        title: What the cell is called.
        size: The picture's longer side in pixels.
        classes: Names by field.
        points: Names of keypoints.
        entries: Columns of a table, which are told in place of its fields.
    """
    if isinstance(sample, BadSample):
        return Cell(title, fault=sample.cause)
    if entries:
        sample = {name: value for name, value in sample.items() if name not in FIELDS}
        return Cell(title, lines=lines_of(sample, classes), entries=entries)
    image = sample.get("image")
    if image is None or image.ndim not in (2, 3):
        drawn = _drawn_array(sample, size)
        if drawn is None:
            return Cell(title, lines=lines_of(sample, classes))
        name, picture, said = drawn
        others = lines_of({k: v for k, v in sample.items() if k != name}, classes)
        sizes = " × ".join(map(str, sample[name].shape))
        return Cell(title, picture, (*others, f"{name} [{sizes}], {said}"))
    image = channels_last(image)
    lines = list(lines_of({**sample, "image": image}, classes))
    pixels, stretched = as_pixels(image)
    if stretched:
        lines.append("shown stretched from its darkest to its lightest value")
    picture, scale = scaled(pixels, size)
    legend: Legend = {}
    placing = Placing(*picture.shape[:2])
    points = points or PointNames()
    marks = marks_of(sample.get("keypoints", ()), points, scale)
    keep_clear(marks, placing)
    if "mask" in sample and np.ndim(sample["mask"]) == 2:
        legend |= draw_mask(picture, sample["mask"], classes.get("mask", Classes()))
    if "boxes" in sample:
        boxes, labels = sample["boxes"], sample.get("box_labels")
        named = classes.get("box_labels", Classes())
        legend |= draw_boxes(picture, boxes, labels, named, scale, placing)
    named_points = draw_marks(picture, marks, points, placing)
    return Cell(title, picture, tuple(lines), legend=legend, points=named_points)


def _drawn_array(sample: Mapping[str, Any], size: int) -> tuple[str, NDArray[np.uint8], str] | None:
    """The first field of which there is a picture: its name, the picture, what it shows."""
    for name, value in sample.items():
        if name in OWN or not isinstance(value, np.ndarray):
            continue
        # Of few values the words say all, and ids of tokens make no curve.
        if value.size > _FEW and not (value.ndim == 1 and value.dtype.kind in "iub"):
            found = array_picture(value, size)
            if found is not None:
                return name, *found
    return None


def channels_last(image: NDArray[Any]) -> NDArray[Any]:
    """An image as [H, W] or [H, W, C]; one that can only be [C, H, W] is turned."""
    is_first = image.ndim == 3 and image.shape[0] <= _MOST_CHANNELS < image.shape[2]
    return np.moveaxis(image, 0, 2) if is_first else image


def as_pixels(image: NDArray[Any]) -> tuple[NDArray[np.uint8], bool]:
    """An image as uint8 [H, W, 3], and whether its values had to be stretched for that.

    Args:
        image: [H, W] or [H, W, C] of any type. Floats from 0 to 1 are shares of 255, one or two
            channels are grey, and of four the last is left away.
    """
    image = np.asarray(image)
    stretched = False
    if image.dtype != np.uint8:
        values = image.astype(np.float64)
        finite = values[np.isfinite(values)]
        low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
        is_share = image.dtype.kind == "f" and low >= 0 and high <= 1
        if image.dtype.kind == "b" or is_share:
            low, high = 0.0, 1.0
        elif not (image.dtype.kind in "iu" and low >= 0 and high <= 255):
            stretched = True
        else:
            low, high = 0.0, 255.0
        shares = (np.nan_to_num(values, nan=low) - low) / ((high - low) or 1.0)
        image = np.rint(np.clip(shares, 0, 1) * 255).astype(np.uint8)
    if image.ndim == 2:
        image = image[:, :, None]
    if image.shape[2] < 3:
        image = np.repeat(image[:, :, :1], 3, axis=2)
    return image[:, :, :3], stretched


def scaled(pixels: NDArray[np.uint8], size: int) -> tuple[NDArray[np.uint8], tuple[float, float]]:
    """Pixels at a size that can be looked at, uint8 [h, w, 3], and the scale across and down.

    Small images grow by whole factors, so that each of their pixels is a square.
    """
    import cv2

    height, width = pixels.shape[:2]
    factor = size / max(height, width)
    factor = float(int(factor)) if factor >= 1 else factor
    shape = (max(1, round(width * factor)), max(1, round(height * factor)))
    mode = cv2.INTER_NEAREST if factor >= 1 else cv2.INTER_AREA
    picture = np.ascontiguousarray(cv2.resize(pixels, shape, interpolation=mode))
    return picture, (shape[0] / width, shape[1] / height)
