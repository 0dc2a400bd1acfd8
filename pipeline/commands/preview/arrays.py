"""Pictures of arrays that are no images: curves, spectra, the middle of a volume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.commands.preview.palette import class_colour

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_CURVES = 8
_PAPER, _AXIS = (250, 250, 250), (190, 190, 190)


def array_picture(array: NDArray[Any], size: int) -> tuple[NDArray[np.uint8], str] | None:
    """A picture of an array and what it shows, or None where an array has nothing to be drawn.

    Args:
        array: Numbers. One axis is a curve, two with few rows or columns are several; two axes
            else a map of values, and of more axes the middle of each but the last two.
        size: The picture's longer side in pixels.
    """
    values = np.asarray(array)
    if values.dtype.kind not in "biuf" or values.size < 2:
        return None
    values = values.astype(np.float64)
    if values.ndim == 1:
        return _curves(values[None], size), "a curve"
    if values.ndim == 2 and min(values.shape) <= _MOST_CURVES < max(values.shape):
        curves = values if values.shape[0] < values.shape[1] else values.T
        return _curves(curves, size), f"{len(curves)} curves" if len(curves) > 1 else "a curve"
    said = "a map of values"
    if values.ndim > 2:
        places = [length // 2 for length in values.shape[:-2]]
        values = values[tuple(places)]
        said = f"slice {', '.join(map(str, places))}"
    return _map(values, size), said


def _curves(curves: NDArray[np.float64], size: int) -> NDArray[np.uint8]:
    """Curves [C, T] over one another; of many points in a column, the least and the greatest."""
    import cv2

    width, height = size, size // 2
    picture = np.full((height, width, 3), _PAPER, np.uint8)
    finite = curves[np.isfinite(curves)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    low, high = (low - 1, high + 1) if low == high else (low, high)

    def row(value: float) -> int:
        return round(4 + (high - value) / (high - low) * (height - 9))

    if low <= 0 <= high:
        picture[row(0.0)] = _AXIS
    length = curves.shape[1]
    for number, curve in enumerate(curves):
        colour = class_colour(number + 1 if len(curves) == 1 else number)
        last: tuple[int, int] | None = None
        if length <= width:
            points = [
                (round(i * (width - 1) / max(length - 1, 1)), curve[i]) for i in range(length)
            ]
        else:
            edges = np.arange(width + 1) * length // width
            points = []
            for x in range(width):
                part = curve[edges[x] : edges[x + 1]]
                part = part[np.isfinite(part)]
                points += [(x, part.min()), (x, part.max())] if part.size else [(x, np.nan)]
        for x, value in points:
            if not np.isfinite(value):
                last = None
                continue
            here = (x, row(value))
            cv2.line(picture, last or here, here, colour, 1, cv2.LINE_AA)
            last = here
    return picture


def _map(values: NDArray[np.float64], size: int) -> NDArray[np.uint8]:
    """Values [H, W] from dark to light; what is no number is red."""
    import cv2

    finite = np.isfinite(values)
    low, high = (values[finite].min(), values[finite].max()) if finite.any() else (0.0, 0.0)
    shares = (np.where(finite, values, low) - low) / ((high - low) or 1.0)
    grey = np.rint(shares * 255).astype(np.uint8)
    picture = np.repeat(grey[:, :, None], 3, axis=2)
    picture[~finite] = (200, 30, 30)
    scale = size / max(values.shape)
    shape = (max(1, round(values.shape[1] * scale)), max(1, round(values.shape[0] * scale)))
    smaller = scale < 1
    mode = cv2.INTER_AREA if smaller else cv2.INTER_NEAREST
    return cv2.resize(picture, shape, interpolation=mode)
