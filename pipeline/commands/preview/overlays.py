"""Masks, boxes and keypoints drawn over the pixels that they are about."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.commands.preview.cells import Legend
from pipeline.commands.preview.lettering import draw_text, line_height, width_of
from pipeline.commands.preview.palette import Colour, class_colour, ink_on
from pipeline.commands.preview.placing import Placing

if TYPE_CHECKING:
    from numpy.typing import NDArray

IGNORED = "ignored"
_OPACITY = 0.45
_BACKGROUND = ("background", "bg", "_background_")
_IGNORED_INK: tuple[Colour, Colour] = ((20, 20, 20), (235, 235, 235))
_LABEL = 11
_MOST_NAMED = 15
_THICK_FROM = 40  # pixels that a box's shorter side has where its outline gets a second one


@dataclass(frozen=True, slots=True)
class Classes:
    """How class ids of a field are told.

    Attributes:
        names: By id; None where they have none.
        ignored: Ids that no loss counts.
    """

    names: Sequence[str] | None = None
    ignored: Collection[int] = ()

    def name(self, number: int) -> str:
        """What a class is called."""
        if self.names is not None and 0 <= number < len(self.names):
            return self.names[number]
        return str(number)

    def is_background(self, number: int) -> bool:
        """Whether a class stands for nothing in particular."""
        if self.names is None:
            return number == 0
        return self.name(number).lower() in _BACKGROUND


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
            colour = class_colour(int(number))
            legend[classes.name(int(number))] = colour
            tinted = canvas[here] * (1 - _OPACITY) + np.array(colour) * _OPACITY
            canvas[here] = np.rint(tinted).astype(np.uint8)
    if unused.any():
        y, x = np.nonzero(unused)
        canvas[y, x] = np.array(_IGNORED_INK, np.uint8)[(x + y) // 3 % 2]
        legend[IGNORED] = _IGNORED_INK[0]
    return legend


def _nearest(count: int, source: int) -> NDArray[np.int64]:
    """The source pixel in which the centre of each of `count` pixels lies."""
    return (2 * np.arange(count) + 1) * source // (2 * count)


def draw_boxes(
    canvas: NDArray[np.uint8],
    boxes: Any,
    labels: Any,
    classes: Classes,
    scale: tuple[float, float],
    placing: Placing,
) -> Legend:
    """Outline boxes in the colours of their classes, with names where there is room for them.

    Of many boxes the names would hide what is in them: they stand in the legend alone.

    Args:
        canvas: uint8 [h, w, 3], drawn on.
        boxes: xyxy, [N, 4], pixels of the image; right and bottom edges excluded.
        labels: Class ids, [N], or None.
        classes: Their names.
        scale: Canvas pixels in an image pixel, across and down.
        placing: Where names may stand.

    Returns:
        The classes that are there.
    """
    places = np.asarray(boxes, np.float64).reshape(-1, 4)
    ids = [0] * len(places) if labels is None else np.asarray(labels).astype(np.int64).tolist()
    legend: Legend = {}
    # The largest first: what lies inside of another stays visible.
    order = np.argsort(-np.prod(places[:, 2:] - places[:, :2], axis=1), kind="stable")
    drawn = []
    for row in order.tolist():
        if not np.isfinite(places[row]).all():
            continue
        colour = class_colour(ids[row])
        x0, y0, x1, y1 = _outline(places[row], scale, canvas.shape)
        _draw_outline(canvas, (x0, y0, x1, y1), colour)
        if labels is not None:
            legend[classes.name(ids[row])] = colour
            drawn.append((x0, y0, y1, classes.name(ids[row]), colour))
    for x, top, bottom, name, colour in drawn if len(drawn) <= _MOST_NAMED else ():
        _draw_chip(canvas, x, top, bottom, name, colour, placing)
    return dict(sorted(legend.items()))


def _outline(
    box: NDArray[np.float64], scale: tuple[float, float], shape: tuple[int, ...]
) -> tuple[int, int, int, int]:
    """First and last canvas column and row of a box; always at least one pixel."""
    height, width = shape[:2]
    limits = np.array([width, height] * 2)
    x0, y0, x1, y1 = np.rint(np.clip(box * np.array(scale * 2), 0, limits)).astype(int).tolist()
    x0, y0 = min(x0, width - 1), min(y0, height - 1)
    return x0, y0, max(x1 - 1, x0), max(y1 - 1, y0)


def _draw_outline(
    canvas: NDArray[np.uint8], box: tuple[int, int, int, int], colour: Colour
) -> None:
    x0, y0, x1, y1 = box
    thick = 2 if min(x1 - x0, y1 - y0) >= _THICK_FROM else 1
    canvas[y0 : y0 + thick, x0 : x1 + 1] = colour
    canvas[y1 + 1 - thick : y1 + 1, x0 : x1 + 1] = colour
    canvas[y0 : y1 + 1, x0 : x0 + thick] = colour
    canvas[y0 : y1 + 1, x1 + 1 - thick : x1 + 1] = colour


def _draw_chip(
    canvas: NDArray[np.uint8],
    x: int,
    top: int,
    bottom: int,
    text: str,
    colour: Colour,
    placing: Placing,
) -> None:
    """A name at a box's upper or lower edge, where it covers no other; else the legend has it."""
    height, width = line_height(_LABEL), width_of(text, _LABEL) + 6
    left = max(0, min(x, canvas.shape[1] - width))
    rows = (top - height, bottom + 1, top, bottom + 1 - height)
    free = placing.first_free([(left, y) for y in rows], width, height)
    if free is not None:
        canvas[free[1] : free[1] + height, left : left + width] = colour
        draw_text(canvas, left + 3, free[1], text, _LABEL, ink_on(colour))
