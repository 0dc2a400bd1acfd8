"""Draw a sample as a cell: its pixels, and its masks, boxes and keypoints over them."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from penstock.core.sample import BadSample
from penstock.pipeline.pictures.fields import OF_TABLES, OWN, Classes, lines_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.ImageFont import FreeTypeFont

Colour = tuple[int, int, int]
Place = tuple[int, int, int, int]
"""Left, top, right and bottom, in pixels."""
Legend = dict[str, Colour]
"""Colours by what they stand for."""

IGNORED = "ignored"
_DPI = 128
_LETTERS = 11
_IGNORED_INK: tuple[Colour, Colour] = ((20, 20, 20), (235, 235, 235))
_OPACITY = 0.45
_RADIUS = 5
_MOST_NAMED_BOXES, _MOST_NAMED_POINTS = 15, 10  # of more the names would hide the picture
_THICK_FROM = 40  # pixels that a box's shorter side has where its outline gets a second one
_MOST_CURVES, _FEW, _MOST_CHANNELS = 8, 8, 4
# Paul Tol's "bright" and "vibrant" schemes, which the colour-blind can tell apart.
_COLOURS: tuple[Colour, ...] = (
    (238, 102, 119), (68, 119, 170), (204, 187, 68), (34, 136, 51), (170, 51, 119),
    (102, 204, 238), (238, 119, 51), (0, 153, 136), (187, 187, 187), (51, 34, 136),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PointNames:
    """Names of keypoints.

    Attributes:
        names: By number; None where they have none.
        per_object: How many an object has, where an image has several; None: all are of one.
    """

    names: Sequence[str] | None = None
    per_object: int | None = None

    def number(self, row: int) -> int:
        """Number the keypoint in a row within its object."""
        each = self.per_object or len(self.names or ())
        return row % each if each else row

    def name(self, number: int) -> str:
        """Name a keypoint."""
        return Classes(self.names).name(number)


@dataclass(frozen=True, slots=True)
class Cell:
    """One look at one sample.

    Attributes:
        title: ``original`` or the epoch.
        picture: uint8 [H, W, 3], RGB; None where there is nothing to be drawn.
        lines: What is said below it.
        legend: The classes and named keypoints that are drawn.
        fault: Why there is no sample.
    """

    title: str
    picture: NDArray[np.uint8] | None = None
    lines: tuple[str, ...] = ()
    legend: Legend = field(default_factory=dict)
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One record: the original, and what epochs make of it.

    Attributes:
        title: The record's name in its storage, and where it stands in the epoch.
        cells: The looks at it.
    """

    title: str
    cells: tuple[Cell, ...]


def class_colour(number: int) -> Colour:
    """Choose the colour of a class id, RGB: the same in every picture."""
    if 0 <= number < len(_COLOURS):
        return _COLOURS[number]
    # Hues a golden section apart stay far from their neighbours, however many there are.
    hue = number * 0.618033988749895 % 1
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.55 + 0.3 * (number % 2), 0.75 + 0.2 * (hue < 0.5))
    return round(red * 255), round(green * 255), round(blue * 255)


@cache
def font(size: int, name: str = "DejaVuSans") -> FreeTypeFont:
    """Load a font of those that matplotlib brings, `size` pixels high."""
    from matplotlib import get_data_path
    from PIL import ImageFont

    return ImageFont.truetype(f"{get_data_path()}/fonts/ttf/{name}.ttf", size)


def draw_cell(
    sample: Any,
    title: str,
    *,
    size: int,
    classes: Mapping[str, Classes],
    points: PointNames | None = None,
    columns: Sequence[str] = (),
) -> Cell:
    """Draw one look at a sample.

    Args:
        sample: A sample with its image as [H, W, C] or [H, W], or a bad sample.
        title: What the cell is called.
        size: The picture's longer side in pixels.
        classes: Names by field.
        points: Names of keypoints.
        columns: What is told of a table's, in place of its fields.
    """
    if isinstance(sample, BadSample):
        return Cell(title, fault=sample.cause)
    if columns:
        sample = {name: value for name, value in sample.items() if name not in OF_TABLES}
        return Cell(title, lines=(*lines_of(sample, classes), *columns))
    image = sample.get("image")
    if image is None or image.ndim not in (2, 3):
        return _array_cell(sample, title, size, classes)
    image = channels_last(image)
    lines = lines_of({**sample, "image": image}, classes)
    pixels, stretched = as_pixels(image)
    if stretched:
        lines = (*lines, "shown stretched from its darkest to its lightest value")
    picture, scale = scaled(pixels, size)
    legend: Legend = {}
    if "mask" in sample and np.ndim(sample["mask"]) == 2:
        legend |= draw_mask(picture, sample["mask"], classes.get("mask", Classes()))
    box_classes = classes.get("box_labels", Classes())
    if "box_masks" in sample:
        draw_box_masks(picture, sample["box_masks"], sample.get("box_labels"))
    overlay = _Overlay(picture, scale)
    if "boxes" in sample:
        legend |= overlay.boxes(sample["boxes"], sample.get("box_labels"), box_classes)
    legend |= overlay.points(sample.get("keypoints", ()), points or PointNames())
    return Cell(title, overlay.with_names(), lines, legend=legend)


def _array_cell(
    sample: Mapping[str, Any], title: str, size: int, classes: Mapping[str, Classes]
) -> Cell:
    """Draw the first field of which there is a picture, and tell the others."""
    for name, value in sample.items():
        if name in OWN or not isinstance(value, np.ndarray):
            continue
        # Of few values the words say all, and ids of tokens make no curve.
        if value.size > _FEW and not (value.ndim == 1 and value.dtype.kind in "iub"):
            if (drawn := array_picture(value, size)) is not None:
                others = lines_of({k: v for k, v in sample.items() if k != name}, classes)
                shape = " × ".join(map(str, value.shape))
                return Cell(title, drawn[0], (*others, f"{name} [{shape}], {drawn[1]}"))
    return Cell(title, lines=lines_of(sample, classes))


def draw_mask(canvas: NDArray[np.uint8], mask: NDArray[Any], classes: Classes) -> Legend:
    """Tint the pixels of each class; ignored ones get stripes, background stays as it is.

    Args:
        canvas: uint8 [h, w, 3], drawn on.
        mask: Class ids, [H, W]; each canvas pixel takes the nearest.
        classes: Their names.

    Returns:
        The classes that are there.
    """
    rows = _nearest(canvas.shape[0], mask.shape[0])
    columns = _nearest(canvas.shape[1], mask.shape[1])
    ids = np.asarray(mask)[rows[:, None], columns]
    known = len(classes.names) if classes.names is not None else 255
    legend: Legend = {}
    unused = np.zeros(ids.shape, bool)
    for number in np.unique(ids).tolist():
        here = ids == number
        if number in classes.ignored or not 0 <= number < known:
            unused |= here
        elif not classes.is_background(int(number)):
            colour = legend[classes.name(int(number))] = class_colour(int(number))
            tinted = canvas[here] * (1 - _OPACITY) + np.array(colour) * _OPACITY
            canvas[here] = np.rint(tinted).astype(np.uint8)
    if unused.any():
        y, x = np.nonzero(unused)
        canvas[y, x] = np.array(_IGNORED_INK, np.uint8)[(x + y) // 3 % 2]
        legend[IGNORED] = _IGNORED_INK[0]
    return legend


def draw_box_masks(canvas: NDArray[np.uint8], masks: Any, labels: Any) -> None:
    """Tint the pixels of each box's mask in the colour of its class.

    Args:
        canvas: uint8 [h, w, 3], drawn on.
        masks: 1 where the object is, [N, H, W].
        labels: Class ids, [N], or None.
    """
    ids = [0] * len(masks) if labels is None else np.asarray(labels).astype(int).tolist()
    for mask, number in zip(np.asarray(masks), ids, strict=True):
        rows = _nearest(canvas.shape[0], mask.shape[0])
        columns = _nearest(canvas.shape[1], mask.shape[1])
        here = mask[rows[:, None], columns] > 0
        tinted = canvas[here] * (1 - _OPACITY) + np.array(class_colour(number)) * _OPACITY
        canvas[here] = np.rint(tinted).astype(np.uint8)


def _nearest(count: int, source: int) -> NDArray[np.int64]:
    """Find the source pixel in which the centre of each of `count` pixels lies."""
    return (2 * np.arange(count) + 1) * source // (2 * count)


class _Overlay:
    """Boxes and keypoints over a picture, with names that cover neither marks nor each other.

    Args:
        picture: uint8 [h, w, 3], drawn on.
        scale: Its pixels in an image pixel, across and down.
    """

    def __init__(self, picture: NDArray[np.uint8], scale: tuple[float, float]) -> None:
        self._picture, self._scale = picture, scale
        self._taken: list[Place] = []
        self._named: list[tuple[Place, str, Colour]] = []

    def with_names(self) -> NDArray[np.uint8]:
        """Write the names over all that was drawn; uint8 [h, w, 3].

        At the upper or lower edge of what they name, where they cover no other; else the legend
        has them.
        """
        from PIL import Image, ImageDraw

        image = Image.fromarray(self._picture)
        draw = ImageDraw.Draw(image)
        for (x0, y0, _, y1), name, colour in self._named:
            width, height = round(font(_LETTERS).getlength(name)) + 6, _LETTERS + 3
            left = max(0, min(x0, image.width - width))
            for top in (y0 - height, y1, y0, y1 - height):
                place = left, top, left + width, top + height
                if 0 <= top <= image.height - height and self._is_free(place):
                    self._taken.append(place)
                    draw.rectangle((left, top, left + width - 1, top + height - 1), fill=colour)
                    ink = "black" if np.dot(colour, (0.299, 0.587, 0.114)) > 140 else "white"
                    middle = left + 3, top + height / 2
                    draw.text(middle, name, font=font(_LETTERS), anchor="lm", fill=ink)
                    break
        return np.array(image)

    def _is_free(self, place: Place) -> bool:
        left, top, right, bottom = place
        return not any(
            left < x1 and x0 < right and top < y1 and y0 < bottom for x0, y0, x1, y1 in self._taken
        )

    def boxes(self, boxes: Any, labels: Any, classes: Classes) -> Legend:
        """Outline boxes in the colours of their classes, with names where there is room.

        Args:
            boxes: xyxy, [N, 4], pixels of the image; right and bottom edges excluded.
            labels: Class ids, [N], or None.
            classes: Their names.

        Returns:
            The classes that are there.
        """
        height, width = self._picture.shape[:2]
        places = np.asarray(boxes, np.float64).reshape(-1, 4)
        ids = [0] * len(places) if labels is None else np.asarray(labels).astype(int).tolist()
        drawn = []
        # The largest first: what lies inside of another stays visible.
        order = np.argsort(-np.prod(places[:, 2:] - places[:, :2], axis=1), kind="stable")
        for row in order[np.isfinite(places[order]).all(1)].tolist():
            corners = np.clip(places[row] * (self._scale * 2), 0, [width, height] * 2)
            x0, y0, x1, y1 = np.rint(corners).astype(int).tolist()
            x0, y0 = min(x0, width - 1), min(y0, height - 1)
            x1, y1 = max(x1, x0 + 1), max(y1, y0 + 1)  # always at least one pixel
            colour = class_colour(ids[row])
            for inset in range(2 if min(x1 - x0, y1 - y0) > _THICK_FROM else 1):
                last = x1 - 1 - inset, y1 - 1 - inset
                cv2.rectangle(self._picture, (x0 + inset, y0 + inset), last, colour)
            drawn.append(((x0, y0, x1, y1), classes.name(ids[row]), colour))
        if labels is None:
            return {}
        self._named += drawn if len(drawn) <= _MOST_NAMED_BOXES else []
        return dict(sorted((name, colour) for _, name, colour in drawn))

    def points(self, points: Any, names: PointNames) -> Legend:
        """Draw keypoints, a disc for a visible one and a ring for a hidden one, and their names.

        Args:
            points: x, y and visibility 0, 1 or 2, [K, 3]; those of visibility 0 are not there.
            names: Says which of them are the same one of several objects.

        Returns:
            The colours of those that have names, by name.
        """
        reach, drawn = _RADIUS + 1, []
        for row, (*place, seen) in enumerate(np.asarray(points, np.float64).tolist()):
            if not seen > 0 or not np.isfinite(place).all():
                continue
            at = (np.array(place) + 0.5) * self._scale  # the middle of the pixel that it names
            x, y = np.clip(at, -reach, 1 << 14).astype(int).tolist()
            number = names.number(row)
            colour, thick = class_colour(number), cv2.FILLED if seen > 1 else 1
            cv2.circle(self._picture, (x, y), _RADIUS, (255, 255, 255), cv2.FILLED, cv2.LINE_AA)
            cv2.circle(self._picture, (x, y), _RADIUS - 1, colour, thick, cv2.LINE_AA)
            drawn.append(((x - reach, y - reach, x + reach, y + reach), number))
        self._taken += [box for box, _ in drawn]
        named = [(box, names.name(number), class_colour(number)) for box, number in drawn]
        self._named += named if len(named) <= _MOST_NAMED_POINTS else []
        if names.names is None:
            return {}
        return {names.name(n): class_colour(n) for n in sorted({number for _, number in drawn})}


def blank_figure(width: int, height: int, **look: Any) -> Any:
    """Make a figure of so many pixels, of matplotlib's that draws without a screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, **look)
    FigureCanvasAgg(figure)
    return figure


def rendered(figure: Any) -> NDArray[np.uint8]:
    """Draw a figure; uint8 [H, W, 3]."""
    import warnings

    with warnings.catch_warnings():  # of letters that the font lacks
        warnings.simplefilter("ignore", UserWarning)
        figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[:, :, :3].copy()


def points_of(pixels: float) -> float:
    """Convert pixels to points, in which matplotlib measures letters and lines."""
    return pixels * 72 / _DPI


def array_picture(array: NDArray[Any], size: int) -> tuple[NDArray[np.uint8], str] | None:
    """Draw an array that is no image, and say what is shown; None where nothing can be drawn.

    Args:
        array: Numbers. One axis is a curve, two with few rows or columns are several; two axes
            else a map of values, and of more axes the middle of each but the last two.
        size: The picture's longer side in pixels.
    """
    values = np.asarray(array)
    if values.dtype.kind not in "biuf" or values.size < 2:
        return None
    values = np.where(np.isfinite(values), values, np.nan).astype(np.float64)
    is_narrow = values.ndim == 2 and min(values.shape) <= _MOST_CURVES < max(values.shape)
    if values.ndim == 1 or is_narrow:
        curves = np.atleast_2d(values)
        curves = curves if curves.shape[0] < curves.shape[1] else curves.T
        return _curves(curves, size), f"{len(curves)} curves" if len(curves) > 1 else "a curve"
    said = "a map of values"
    if values.ndim > 2:
        places = [length // 2 for length in values.shape[:-2]]
        values = values[tuple(places)]
        said = f"slice {', '.join(map(str, places))}"
    pixels, _ = as_pixels(values)
    pixels[np.isnan(values)] = (200, 30, 30)
    return scaled(pixels, size)[0], said


def _curves(curves: NDArray[np.float64], size: int) -> NDArray[np.uint8]:
    """Draw curves [C, T] over one another."""
    figure = blank_figure(size, size // 2, facecolor="#fafafa")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.margins(x=0)
    if np.nanmin(curves, initial=0) < 0:
        axes.axhline(0, color="#bebebe", linewidth=points_of(1))
    for number, curve in enumerate(curves):
        colour = np.divide(class_colour(number + 1 if len(curves) == 1 else number), 255)
        axes.plot(curve, color=colour, linewidth=points_of(1.5))
    return rendered(figure)


def channels_last(image: NDArray[Any]) -> NDArray[Any]:
    """Turn an image that can only be [C, H, W]; the others are [H, W] or [H, W, C] already."""
    is_first = image.ndim == 3 and image.shape[0] <= _MOST_CHANNELS < image.shape[2]
    return np.moveaxis(image, 0, 2) if is_first else image


def as_pixels(image: NDArray[Any]) -> tuple[NDArray[np.uint8], bool]:
    """Convert an image to uint8 [H, W, 3]; also say whether its values had to be stretched.

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
        limit = 255.0 if image.dtype.kind in "iu" else 1.0
        stretched = not (low >= 0 and high <= limit)
        if not stretched:
            low, high = 0.0, limit
        shares = (np.nan_to_num(values, nan=low) - low) / ((high - low) or 1.0)
        image = np.rint(np.clip(shares, 0, 1) * 255).astype(np.uint8)
    if image.ndim == 2:
        image = image[:, :, None]
    if image.shape[2] < 3:
        image = np.repeat(image[:, :, :1], 3, axis=2)
    return image[:, :, :3], stretched


def scaled(pixels: NDArray[np.uint8], size: int) -> tuple[NDArray[np.uint8], tuple[float, float]]:
    """Scale pixels to what can be looked at, uint8 [h, w, 3], and tell the scale across and down.

    Small images grow by whole factors, so that each of their pixels is a square.
    """
    height, width = pixels.shape[:2]
    factor = size / max(height, width)
    factor = float(int(factor)) if factor >= 1 else factor
    shape = (max(1, round(width * factor)), max(1, round(height * factor)))
    mode = cv2.INTER_NEAREST if factor >= 1 else cv2.INTER_AREA
    picture = np.ascontiguousarray(cv2.resize(pixels, shape, interpolation=mode))
    return picture, (shape[0] / width, shape[1] / height)
