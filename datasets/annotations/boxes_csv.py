"""Read boxes from a CSV file with a row per box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from penstock.core.contracts import RecordsToLabel
from penstock.core.registry import register
from penstock.datasets.annotations.keyed_tables import BadCells, KeyedTable
from penstock.datasets.annotations.rows import BadBoxes, LabelSource, ObjectRows, Objects
from penstock.datasets.records.label_tables import LabelTable, number_of
from penstock.datasets.records.labels import USUAL_LABELS, is_missing, listed

BoxFormat = Literal["xyxy", "xywh", "cxcywh"]

# Usual names, case-insensitive.
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
# Larger values are pixels, not fractions of an image.
_MOST_SHARE = 2.0


@register("annotations", "boxes_csv")
class CsvBoxes(KeyedTable):
    """Read boxes from a CSV file with a row per box.

    Records get ``boxes`` float32 [N, 4] (xyxy, pixels, right and bottom edge exclusive) and
    ``box_labels`` int64 [N]. Boxes in fractions of the image are ``boxes_normalized`` until it is
    decoded. An image without rows, or with only its name in a row, has zero boxes. A broken row
    (not a number, empty class) makes its record bad. Rows of images outside the data are ignored,
    with a warning if the file describes only this data.

    Args:
        path: The file, in the data's folder or beside it; ``{part}`` is train or val.
        image_column: Column of image names, with or without folders and extension; None:
            ``image``, ``filename`` or another usual name.
        label_column: Column of classes; None: ``label``, ``class`` or another usual name.
        box_columns: The four columns of a box; None: ``[xmin, ymin, xmax, ymax]``,
            ``[x, y, width, height]`` or other usual names.
        box_format: Two corners (``xyxy``); upper left corner, width and height (``xywh``); centre,
            width and height (``cxcywh``). None: derived from the column names.
        coordinates: ``pixels``, or ``normalized``: fractions of the image's width and height.
        size_columns: Columns of the image's width and height in pixels, to clip boxes; None: the
            augmentation clips them.
        rescale: The file describes images of another size: scale boxes from `size_columns` to the
            image. False: an image of another size is a bad record.
        header: Column names, for a file without a header line.
        delimiter: Separates values; None: a comma, tab or semicolon, by the first line.
        classes: Class names by id; None: the sorted classes in the file.
        missing: Accept images without rows as ``empty``, or raise an ``error``. None: accept them
            with a warning, up to half of the images.
        bad_boxes: For a box without area in its image: ``drop`` it with a warning, or make its
            ``record`` bad.
    """

    name = "boxes_csv"
    taken = "taken as without objects"

    def __init__(
        self,
        path: str = "annotations/{part}.csv",
        *,
        image_column: str | None = None,
        label_column: str | None = None,
        box_columns: tuple[str, str, str, str] | None = None,
        box_format: BoxFormat | None = None,
        coordinates: Literal["pixels", "normalized"] = "pixels",
        size_columns: tuple[str, str] | None = None,
        rescale: bool = False,
        header: list[str] | None = None,
        delimiter: str | None = None,
        classes: list[str] | None = None,
        missing: Literal["empty", "error"] | None = None,
        bad_boxes: BadBoxes = "drop",
    ) -> None:
        super().__init__(
            path, image_column=image_column, header=header, delimiter=delimiter, missing=missing
        )
        self.label_column = label_column
        self.box_columns = box_columns
        self.box_format: BoxFormat | None = box_format
        self.coordinates = coordinates
        self.size_columns = size_columns
        self.rescale = rescale
        if rescale and size_columns is None:
            raise ValueError(
                "dataset.annotations.rescale: true needs the columns of the stated sizes; set "
                "dataset.annotations.size_columns=[width,height]"
            )
        self.classes = classes
        self.bad_boxes: BadBoxes = bad_boxes

    def rows(self, source: LabelSource, path: str) -> list[ObjectRows]:
        """Return the boxes of each record."""
        normalized = self.coordinates == "normalized"

        def read() -> tuple[list[Objects | str], dict[str, list[str]]]:
            objects = self._read(path, source.records, source.where)
            self._check_unit(objects, source.where)
            return objects, {}

        return source.objects(read, normalized=normalized)

    def _read(self, path: str, records: RecordsToLabel, where: str) -> list[Objects | str]:
        table, image = self.open(path, where)
        columns = self._columns(table)
        known = records.classes.get("box_labels") or self.classes
        size = (1, 1) if self.coordinates == "normalized" else None
        cells = BadCells(table, path)
        objects: list[Objects | str] = []
        for rows in self.match(table, image, records):
            found = Objects(size=size if rows else None)
            cause = ""
            for row in rows or ():
                try:
                    label = _add_box(table, row, columns, found)
                except ValueError as error:
                    cause = cause or cells.add(row, columns.label, error)
                    continue
                if label and known is not None and label not in known:
                    raise ValueError(
                        f"{where}: {table.at(row)}: class {label[:100]!r} is not among the "
                        f"{len(known)} classes; correct it, or add it to the training data (or to "
                        f"classes, if those are given)"
                    )
                if label and is_missing(label, known):
                    raise ValueError(
                        f"{where}: {table.at(row)}: the class is missing ({label!r}); fill it in, "
                        f"leave all columns but {image!r} empty for an image without boxes, or, if "
                        f"it is a class, list all classes: "
                        f"{listed('dataset.annotations.classes', label)}"
                    )
            objects.append(cause or found)
        return objects

    def _columns(self, table: LabelTable) -> _BoxColumns:
        four, box_format = tuple(self.box_columns or ()), self.box_format
        table.check(*four, *(self.size_columns or ()))
        if not four:
            lower = {name.lower(): name for name in table.columns}
            known = next((four for four in _BOX if set(four) <= lower.keys()), None)
            if known is None:
                raise ValueError(
                    f"{table.where}: no columns of boxes, such as xmin, ymin, xmax, ymax; columns: "
                    f"{table.shown}; name all four by dataset.annotations.box_columns"
                )
            four, box_format = tuple(lower[name] for name in known), box_format or _BOX[known]
        label = table.column(
            self.label_column, USUAL_LABELS, "of classes", "dataset.annotations.label_column"
        )
        return _BoxColumns(label, four, box_format or "xyxy", self.size_columns)

    def _check_unit(self, objects: Sequence[Objects | str], where: str) -> None:
        """Raise ValueError for boxes that are plainly in the other unit."""
        boxes = [box for one in objects if isinstance(one, Objects) for box in one.boxes]
        edges = np.array(boxes, np.float64).reshape(-1, 4)
        edges = edges[np.isfinite(edges).all(1)]
        if not len(edges):
            return
        shares = bool((edges <= 1).all() and (edges % 1).any())
        if self.coordinates == "pixels" and shares:
            raise ValueError(
                f"{where}: all boxes lie between 0 and 1, too small for pixels; set "
                f"dataset.annotations.coordinates=normalized"
            )
        if self.coordinates == "normalized" and np.median(edges.max(1)) > _MOST_SHARE:
            raise ValueError(
                f"{where}: most boxes reach beyond 1, up to {edges.max():g}, too large for "
                f"fractions of an image; set dataset.annotations.coordinates=pixels"
            )


@dataclass(frozen=True, slots=True)
class _BoxColumns:
    """Columns of class, box (four) and image size (two, or None) in a table of boxes."""

    label: str
    box: tuple[str, ...]
    format: BoxFormat
    size: tuple[str, str] | None


def _add_box(table: LabelTable, row: int, columns: _BoxColumns, objects: Objects) -> str:
    """Add the box of a row and return its class; empty for a row with only the image name."""
    cells = {name: table.columns[name][row] for name in (columns.label, *columns.box)}
    label = cells[columns.label]
    if columns.size is not None:
        sides = (number_of(table.columns[name][row], "its size") for name in columns.size)
        width, height = sides
        if not (width > 0 and height > 0 and width % 1 == height % 1 == 0):
            raise ValueError(f"the image has {width:g} x {height:g} pixels")
        size = int(width), int(height)
        if objects.size not in (None, (1, 1), size):
            raise ValueError(f"the image has {size} pixels here and {objects.size} above")
        objects.size = objects.size or size
    if label:
        box = [number_of(cells[name], name) for name in columns.box]
        objects.boxes.append(_corners(box, columns.format))
        objects.names.append(label)
    elif any(cells[name] for name in columns.box):
        raise ValueError("the class is empty")
    return label


def _corners(box: Sequence[float], box_format: BoxFormat) -> tuple[float, float, float, float]:
    """Convert a box to its left, top, right and bottom edge."""
    first, second, third, fourth = box
    if box_format == "xyxy":
        return first, second, third, fourth
    if box_format == "cxcywh":
        first, second = first - third / 2, second - fourth / 2
    return first, second, first + third, second + fourth
