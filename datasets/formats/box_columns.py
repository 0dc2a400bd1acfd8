"""Which columns of a table are an image's name, a box and its class: from the columns' names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

BoxFormat = Literal["xyxy", "xywh", "cxcywh"]

# As the field writes them, in any case.
_IMAGE = ("image", "file_name", "filename", "path", "image_path", "image_name", "image_id",
          "imageid")  # fmt: skip
_LABEL = ("label", "class", "class_name", "label_name", "labelname", "category", "name")
_BOX: dict[tuple[str, str, str, str], BoxFormat] = {
    ("xmin", "ymin", "xmax", "ymax"): "xyxy",
    ("x_min", "y_min", "x_max", "y_max"): "xyxy",
    ("x1", "y1", "x2", "y2"): "xyxy",
    ("left", "top", "right", "bottom"): "xyxy",
    ("x_center", "y_center", "width", "height"): "cxcywh",
    ("cx", "cy", "w", "h"): "cxcywh",
    ("x", "y", "width", "height"): "xywh",
    ("x", "y", "w", "h"): "xywh",
}


@dataclass(frozen=True, slots=True)
class BoxColumns:
    """Columns of a table of boxes, by their places in a row.

    Attributes:
        image: The image's name.
        label: The name of the class.
        box: The four numbers of the box.
        box_names: What the columns of these are called.
        format: What the four are: two corners; a corner, width and height; or the centre, width
            and height.
        size: Width and height of the image, or None.
    """

    image: int
    label: int
    box: tuple[int, ...]
    box_names: tuple[str, ...]
    format: BoxFormat
    size: tuple[int, ...] | None


def find_box_columns(
    names: Sequence[str],
    *,
    image: str | None,
    label: str | None,
    box: Sequence[str] | None,
    box_format: BoxFormat | None,
    size: Sequence[str] | None,
    where: str,
) -> BoxColumns:
    """The columns by their names.

    Args:
        names: All columns, in order.
        image: The image's name; None: whichever usual name there is.
        label: The class; None: whichever usual name there is.
        box: The four numbers of a box; None: whichever usual names there are.
        box_format: What the four are; None: what their names say, corners if they are given.
        size: Width and height of the image; None: not known.
        where: The storage and the file, for messages.

    Raises:
        ValueError: A column is not there, or stands twice.
    """
    shown = ", ".join(map(repr, names))
    for name in names:
        if list(names).count(name) > 1:
            raise ValueError(f"{where}: column {name!r} stands twice; rename one")
    for given in (image, label, *(box or ()), *(size or ())):
        if given is not None and given not in names:
            raise ValueError(f"{where}: no column {given!r}; columns: {shown}")
    lower = {name.lower(): name for name in names}

    def usual(known: Sequence[str], what: str, setting: str) -> str:
        found = next((lower[name] for name in known if name in lower), None)
        if found is None:
            remedy = f"name it by dataset.annotations.{setting}"
            if len(names) == 1:
                remedy = "say what separates them by dataset.annotations.delimiter"
            raise ValueError(
                f"{where}: no column {what}, such as {known[0]!r}; columns: {shown}; {remedy}"
            )
        return found

    image = image or usual(_IMAGE, "of the images' names", "image_column")
    four = tuple(box or ())
    if not four:
        known = next((four for four in _BOX if set(four) <= lower.keys()), None)
        if known is None:
            raise ValueError(
                f"{where}: no columns of boxes, such as xmin, ymin, xmax, ymax; columns: {shown}; "
                f"name all four by dataset.annotations.box_columns"
            )
        four, box_format = tuple(lower[name] for name in known), box_format or _BOX[known]
    label = label or usual(_LABEL, "of classes", "label_column")
    places = {name: place for place, name in enumerate(names)}
    return BoxColumns(
        image=places[image],
        label=places[label],
        box=tuple(places[name] for name in four),
        box_names=four,
        format=box_format or "xyxy",
        size=None if size is None else tuple(places[name] for name in size),
    )


def corners(box: Sequence[float], box_format: BoxFormat) -> tuple[float, float, float, float]:
    """Left, top, right and bottom edge of a box."""
    first, second, third, fourth = box
    if box_format == "xyxy":
        return first, second, third, fourth
    if box_format == "cxcywh":
        first, second = first - third / 2, second - fourth / 2
    return first, second, first + third, second + fourth
