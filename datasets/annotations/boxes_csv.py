"""Boxes from a CSV file: a row for each box."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from penstock.core.contracts import RecordsToLabel
from penstock.core.registry import register
from penstock.datasets.records.label_files import (
    BadBoxes,
    LabelFile,
    ObjectRows,
    Objects,
    cached_objects,
    check_unlabelled,
    find_labels,
    marks_of,
)
from penstock.datasets.records.label_tables import (
    IMAGE_COLUMNS,
    LabelTable,
    delimiter_of,
    entries_in_table,
    number_of,
)
from penstock.datasets.records.labels import is_missing, listed

BoxFormat = Literal["xyxy", "xywh", "cxcywh"]

# As the field writes them, in any case.
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
# Shares of an image beyond this are pixels.
_MOST_SHARE = 2.0


@register("annotations", "boxes_csv")
class CsvBoxes:
    """Boxes from a CSV file: a row for each box.

    Records get ``boxes`` float32 [N, 4] (xyxy, pixels, the right and bottom edge excluded) and
    ``box_labels`` int64 [N]; as shares of the image they are ``boxes_normalized`` until it is
    decoded. An image without rows has no boxes, and so has one whose row holds nothing but its
    name. An image with a broken row (no number, no class) is a bad record. Rows of images that
    are not in the data are left out, and counted where the file is of this data alone.

    Args:
        path: The file, in the data's folder or beside it; ``{part}`` is train or val.
        image_column: The column of the images' names, with or without folders and ending; None:
            ``image``, ``filename`` or another usual name.
        label_column: The column of the classes; None: ``label``, ``class`` or the like.
        box_columns: The four columns of a box; None: ``[xmin, ymin, xmax, ymax]``,
            ``[x, y, width, height]`` or other usual names.
        box_format: Two corners (``xyxy``), the upper left corner with width and height
            (``xywh``), or the centre with these (``cxcywh``); None: as the columns' names say.
        coordinates: ``pixels``, or ``normalized``: shares of the image's width and height.
        size_columns: Two columns of the image's width and height in pixels, at which boxes are
            cut; None: that is left to the augmentation.
        rescale: The file is of images of another size: scale boxes from the size in
            `size_columns` to the size of the image. False: an image of another size is bad.
        header: The columns' names, for a file that begins with a box.
        delimiter: What separates values; None: a tab in ``.tsv`` files, else a comma.
        classes: Names of the classes by id; None: those found, sorted.
        missing: An image without rows has no boxes (``empty``), or is an ``error``. None: they have
            no boxes, which is said, and is an error where it is more than half of the images.
        bad_boxes: A box without area in its image is left out, and said (``drop``), or makes
            its record bad (``record``).
    """

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
        self.path = path
        self.image_column = image_column
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
        self.header = header
        self.delimiter = delimiter_of(delimiter, path)
        self.classes = classes
        self.missing = missing
        self.bad_boxes: BadBoxes = bad_boxes

    def of(self, records: RecordsToLabel) -> list[ObjectRows]:
        """Read the boxes of a storage's records; see `core.contracts.Annotations`."""
        path, where = find_labels("boxes_csv", "file", self.path, records)
        # A file for both parts has rows of the other.
        its_own = not records.part or "{part}" in self.path
        normalized = self.coordinates == "normalized"
        known = records.classes.get("box_labels") or self.classes

        def read() -> tuple[list[Objects | str], dict[str, list[str]]]:
            objects = self._read(path, records.keys, where, known, its_own=its_own)
            self._check_unit(objects, where)
            return objects, {}

        return cached_objects(
            "boxes_csv",
            vars(self),
            records,
            marks=marks_of([LabelFile.at(path)]),
            read=read,
            where=where,
            normalized=normalized,
        )

    def _read(
        self,
        path: str,
        keys: Sequence[str],
        where: str,
        known: Sequence[str] | None,
        *,
        its_own: bool,
    ) -> list[Objects | str]:
        """Read the boxes of each record.

        Args:
            path: The file.
            keys: Keys of the records.
            where: The storage and the file, for messages.
            known: Names that classes may have; None: any.
            its_own: The file is of these records alone.
        """
        table = LabelTable.at(path, delimiter=self.delimiter, header=self.header, where=where)
        columns = self._columns(table)
        objects: dict[str, Objects | str] = {}
        lines: dict[str, int] = {}
        unknown: dict[str, str] = {}
        for line, name, row in table.images(columns.image):
            lines.setdefault(name, line)
            size = (1, 1) if self.coordinates == "normalized" else None
            found = objects.setdefault(name, Objects(size=size))
            if isinstance(found, str):
                continue
            try:
                label = _add_box(row, columns, found)
            except ValueError as error:
                objects[name] = f"line {line} of {os.path.basename(path)}: {error}"
                continue
            if label and known is not None and label not in known:
                unknown.setdefault(
                    name,
                    f"line {line}: class {label!r} is not among the {len(known)} classes; correct "
                    f"it, or add it to the training data (or to classes, if those are given)",
                )
            elif label and is_missing(label, known):
                unknown.setdefault(
                    name,
                    f"line {line}: the class is missing ({label!r}); fill it in, leave all columns "
                    f"but {columns.image!r} empty for an image without boxes, or, if it is a "
                    f"class, list all classes: {listed('dataset.annotations.classes', label)}",
                )
        entries = entries_in_table(keys, lines, where=where, its_own=its_own)
        check_unlabelled(keys, entries, self.missing, where, "row")
        there = set(entries)
        for name, said in unknown.items():
            if name in there:
                raise ValueError(f"{where}: {said}")
        return [Objects() if entry is None else objects[entry] for entry in entries]

    def _columns(self, table: LabelTable) -> _BoxColumns:
        """Find the columns by their names: those that are set, or the usual ones."""
        four, box_format = tuple(self.box_columns or ()), self.box_format
        table.check(self.image_column, self.label_column, *four, *(self.size_columns or ()))
        needed = "of the images' names", "image_column"
        image = self.image_column or table.needed(IMAGE_COLUMNS, *needed)
        if not four:
            lower = {name.lower(): name for name in table.columns}
            known = next((four for four in _BOX if set(four) <= lower.keys()), None)
            if known is None:
                raise ValueError(
                    f"{table.head}: no columns of boxes, such as xmin, ymin, xmax, ymax; columns: "
                    f"{table.shown}; name all four by dataset.annotations.box_columns"
                )
            four, box_format = tuple(lower[name] for name in known), box_format or _BOX[known]
        label = self.label_column or table.needed(_LABEL, "of classes", "label_column")
        return _BoxColumns(image, label, four, box_format or "xyxy", self.size_columns)

    def _check_unit(self, objects: Sequence[Objects | str], where: str) -> None:
        """Refuse boxes that are plainly of the other unit; as they are, all would be wrong."""
        boxes = [box for one in objects if isinstance(one, Objects) for box in one.boxes]
        edges = np.array(boxes, np.float64).reshape(-1, 4)
        edges = edges[np.isfinite(edges).all(1)]
        if not len(edges):
            return
        shares = bool((edges <= 1).all() and (edges % 1).any())
        if self.coordinates == "pixels" and shares:
            raise ValueError(
                f"{where}: all boxes lie between 0 and 1, which is no pixel; set "
                f"dataset.annotations.coordinates=normalized"
            )
        if self.coordinates == "normalized" and np.median(edges.max(1)) > _MOST_SHARE:
            raise ValueError(
                f"{where}: most boxes reach beyond 1, up to {edges.max():g}, which is no share of "
                f"an image; set dataset.annotations.coordinates=pixels"
            )


@dataclass(frozen=True, slots=True)
class _BoxColumns:
    """Columns of a table of boxes, by name.

    Attributes:
        image: The image's name.
        label: The name of the class.
        box: The four numbers of the box.
        format: What the four are: two corners; a corner, width and height; or the centre, width
            and height.
        size: Width and height of the image, or None.
    """

    image: str
    label: str
    box: tuple[str, ...]
    format: BoxFormat
    size: tuple[str, str] | None


def _add_box(row: Mapping[str, str], columns: _BoxColumns, objects: Objects) -> str:
    """Add the box of a row, and give its class; empty: the row only names the image."""
    label = row[columns.label]
    if columns.size is not None:
        width, height = (number_of(row[name], "its size") for name in columns.size)
        if not (width > 0 and height > 0 and width % 1 == height % 1 == 0):
            raise ValueError(f"the image has {width:g} x {height:g} pixels")
        size = int(width), int(height)
        if objects.size not in (None, (1, 1), size):
            raise ValueError(f"the image has {size} pixels here and {objects.size} above")
        objects.size = objects.size or size
    if label:
        box = [number_of(row[name], name) for name in columns.box]
        objects.boxes.append(_corners(box, columns.format))
        objects.names.append(label)
    elif any(row[name] for name in columns.box):
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
