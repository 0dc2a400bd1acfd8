"""Keypoints drawn over the pixels that they are about, with their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.commands.preview.cells import Legend
from pipeline.commands.preview.lettering import draw_text, line_height, width_of
from pipeline.commands.preview.palette import class_colour
from pipeline.commands.preview.placing import Placing

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LABEL = 11
_RADIUS = 5
_MOST_NAMED = 10  # of more the names would hide the picture; their colours are in the legend
_WHITE, _BLACK = (255, 255, 255), (0, 0, 0)


@dataclass(frozen=True, slots=True)
class PointNames:
    """How keypoints are told.

    Attributes:
        names: By number; None where they have none.
        per_object: How many an object has, where an image has several; None: all are of one.
    """

    names: Sequence[str] | None = None
    per_object: int | None = None

    def number(self, row: int) -> int:
        """Which keypoint of its object the one in a row is."""
        each = self.per_object or (len(self.names) if self.names else None)
        return row % each if each else row

    def name(self, number: int) -> str:
        """What a keypoint is called."""
        known = self.names is not None and number < len(self.names)
        return self.names[number] if self.names is not None and known else str(number)


@dataclass(frozen=True, slots=True)
class Mark:
    """A keypoint on a canvas.

    Attributes:
        number: Which one of its object.
        x: Of the canvas pixel that it is drawn around.
        y: Likewise.
        is_visible: Whether it can be seen in the image, or is hidden there.
    """

    number: int
    x: int
    y: int
    is_visible: bool


def marks_of(points: Any, names: PointNames, scale: tuple[float, float]) -> list[Mark]:
    """Where keypoints are drawn; those of visibility 0 are not there.

    Args:
        points: x, y and visibility 0, 1 or 2, [K, 3].
        names: Says which of them are the same one of several objects.
        scale: Canvas pixels in an image pixel, across and down.
    """
    return [
        # The middle of the pixel that it names.
        Mark(names.number(row), int((x + 0.5) * scale[0]), int((y + 0.5) * scale[1]), seen > 1)
        for row, (x, y, seen) in enumerate(np.asarray(points, np.float64).tolist())
        if seen > 0 and np.isfinite([x, y]).all()
    ]


def keep_clear(marks: Sequence[Mark], placing: Placing) -> None:
    """Let no name stand on the marks."""
    reach = _RADIUS + 1
    for mark in marks:
        placing.take((mark.x - reach, mark.y - reach, mark.x + reach, mark.y + reach))


def draw_marks(
    canvas: NDArray[np.uint8], marks: Sequence[Mark], names: PointNames, placing: Placing
) -> Legend:
    """Draw keypoints, a disc for a visible one and a ring for a hidden one, and their names.

    Args:
        canvas: uint8 [h, w, 3], drawn on.
        marks: The keypoints.
        names: What they are called.
        placing: Where names may stand; one that has no room is left out.

    Returns:
        The colours of those that have names, by name.
    """
    import cv2

    for mark in marks:
        centre, colour = (mark.x, mark.y), class_colour(mark.number)
        cv2.circle(canvas, centre, _RADIUS, _WHITE, cv2.FILLED, cv2.LINE_AA)
        thickness = cv2.FILLED if mark.is_visible else 1
        cv2.circle(canvas, centre, _RADIUS - 1, colour, thickness, cv2.LINE_AA)
    for mark in marks if names.names is None or len(marks) <= _MOST_NAMED else ():
        _draw_name(canvas, mark, names.name(mark.number), placing)
    if names.names is None:
        return {}
    return {names.name(n): class_colour(n) for n in sorted({mark.number for mark in marks})}


def _draw_name(canvas: NDArray[np.uint8], mark: Mark, text: str, placing: Placing) -> None:
    """White letters with a dark edge, at a side of the mark."""
    away, height, width = _RADIUS + 3, line_height(_LABEL), width_of(text, _LABEL) + 2
    middle, centred = mark.y - height // 2, mark.x - width // 2
    sides = (
        (mark.x + away, middle),
        (mark.x - away - width, middle),
        (centred, mark.y - away - height),
        (centred, mark.y + away),
    )
    free = placing.first_free(sides, width, height)
    if free is None:
        return
    left, top = free[0] + 1, free[1]
    for right, down in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        draw_text(canvas, left + right, top + down, text, _LABEL, _BLACK)
    draw_text(canvas, left, top, text, _LABEL, _WHITE)
