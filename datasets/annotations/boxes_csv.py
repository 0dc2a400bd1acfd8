"""Boxes from a CSV file: a row for each box."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from datasets.annotation_files import (
    LabelFile,
    entries_of,
    find_labels,
    marks_of,
    refuse_unlabelled,
)
from datasets.annotation_rows import BadBoxes, ObjectRows, Objects, cached_objects
from datasets.formats.box_columns import BoxColumns, BoxFormat, corners, find_box_columns
from datasets.formats.csv_rows import CsvRow, convert, iter_rows
from datasets.protocols import RecordsToLabel
from pipeline.registry import register

log = logging.getLogger(__name__)

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
        header: The columns' names, for a file that begins with a box.
        delimiter: What separates values; None: a tab in ``.tsv`` files, else a comma.
        classes: Names of the classes by id; None: those found, sorted.
        missing: An image without rows has no boxes (``empty``), or is an ``error``.
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
        header: list[str] | None = None,
        delimiter: str | None = None,
        classes: list[str] | None = None,
        missing: Literal["empty", "error"] = "empty",
        bad_boxes: BadBoxes = "drop",
    ) -> None:
        self.path = path
        self.image_column = image_column
        self.label_column = label_column
        self.box_columns = box_columns
        self.box_format: BoxFormat | None = box_format
        self.coordinates = coordinates
        self.size_columns = size_columns
        self.header = header
        self.delimiter = delimiter or ("\t" if path.endswith(".tsv") else ",")
        self.classes = classes
        self.missing = missing
        self.bad_boxes: BadBoxes = bad_boxes
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise ValueError(
                f"dataset.annotations.delimiter: {delimiter!r}, expected one character, as in ';'"
            )

    def of(self, records: RecordsToLabel) -> list[ObjectRows]:
        """The boxes of a storage's records; see `datasets.protocols.Annotations`."""
        path, where = find_labels("boxes_csv", "file", self.path, records)
        # A file for both parts has rows of the other.
        its_own = not records.part or "{part}" in self.path
        known = records.classes.get("box_labels") or self.classes

        def read() -> tuple[list[Objects | str], dict[str, list[str]]]:
            boxes = _Boxes(path, where, None if known is None else frozenset(known))
            for row, columns in self._rows(path, where):
                boxes.add(row, columns, normalized=self.coordinates == "normalized")
            there = self.missing == "error"
            objects = boxes.of(records.keys, must_fit=its_own, must_be_there=there)
            self._check_unit(objects, where)
            return objects, {}

        return cached_objects(
            {"annotations": "boxes_csv", **vars(self), "file": path},
            records,
            marks=marks_of([LabelFile.at(path)]),
            read=read,
            classes=self.classes,
            bad_boxes=self.bad_boxes,
            where=where,
            normalized=self.coordinates == "normalized",
        )

    def _rows(self, path: str, where: str) -> Iterator[tuple[CsvRow, BoxColumns]]:
        rows = iter_rows(path, delimiter=self.delimiter, where=where)
        first = next(rows, None)
        if first is None:
            raise ValueError(f"{where}: it is empty; write a first line with the columns' names")
        names = [name.strip() for name in self.header or first.values]
        if len(names) != len(first.values):
            raise ValueError(
                f"{where}: line {first.line}: got {len(first.values)} values, and "
                f"dataset.annotations.header names {len(names)} columns; name them all"
            )
        columns = find_box_columns(
            names,
            image=self.image_column,
            label=self.label_column,
            box=self.box_columns,
            box_format=self.box_format,
            size=self.size_columns,
            where=where if self.header else f"{where}: line {first.line}",
        )
        for row in itertools.chain([first] if self.header else [], rows):
            yield row, columns

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


class _Boxes:
    """The boxes of a file by the name of their image.

    Args:
        path: The file.
        where: The storage and the file, for messages.
        classes: Names that classes may have; None: any.
    """

    def __init__(self, path: str, where: str, classes: frozenset[str] | None) -> None:
        self._file = os.path.basename(path)
        self._where = where
        self._classes = classes
        self._objects: dict[str, Objects | str] = {}
        self._first_lines: dict[str, int] = {}
        self._unknown: dict[str, tuple[int, str]] = {}

    def add(self, row: CsvRow, columns: BoxColumns, *, normalized: bool) -> None:
        """Add a row; a broken one makes its image's record bad."""
        name = row.values[columns.image].strip()
        if not name:
            raise ValueError(
                f"{self._where}: line {row.line}: the image's name is empty; fill it in, or take "
                f"the line out"
            )
        self._first_lines.setdefault(name, row.line)
        objects = self._objects.setdefault(name, Objects(size=(1, 1) if normalized else None))
        if isinstance(objects, str):
            return
        try:
            self._add_box(row, columns, objects, name)
        except ValueError as error:
            self._objects[name] = f"line {row.line} of {self._file}: {error}"

    def of(
        self, keys: Sequence[str], *, must_fit: bool, must_be_there: bool
    ) -> list[Objects | str]:
        """What stands there of each record.

        Args:
            keys: Keys of the records.
            must_fit: Say how many images are not among them.
            must_be_there: Refuse records without rows.

        Raises:
            ValueError: That, or no row is of any record, or a class is not known.
        """
        where, lines = self._where, self._first_lines
        if not lines:
            raise ValueError(f"{where}: it has no row; nothing to read")
        entries = entries_of(keys, list(lines), where=where)
        if must_be_there:
            refuse_unlabelled(keys, entries, where, "row")
        found = {entry for entry in entries if entry is not None}
        others = [name for name in lines if name not in found]
        if not found and keys:
            raise ValueError(
                f"{where}: line {lines[others[0]]}: no image {others[0]!r}, and none of the other "
                f"{len(others) - 1:,} is in the data, whose first is {keys[0]!r}; write the names "
                f"so, or set dataset.annotations.image_column"
            )
        if others and must_fit:
            log.warning(
                "%s: rows of %s images that are not in the data are left out, such as %r in line "
                "%s", where, f"{len(others):,}", others[0], lines[others[0]],
            )  # fmt: skip
        for name, (line, label) in self._unknown.items():
            if name in found:
                raise ValueError(
                    f"{where}: line {line}: class {label!r} is not among the "
                    f"{len(self._classes or ())} classes; correct it, or add it to the training "
                    f"data (or to classes, if those are given)"
                )
        return [Objects() if entry is None else self._objects[entry] for entry in entries]

    def _add_box(self, row: CsvRow, columns: BoxColumns, objects: Objects, name: str) -> None:
        values = [row.values[place].strip() for place in columns.box]
        label = row.values[columns.label].strip()
        if columns.size is not None:
            self._add_size(row, columns.size, objects)
        if not label and not any(values):
            return  # the image is named, and has no boxes
        if not label:
            raise ValueError("the class is empty")
        box = [
            _number(text, column) for text, column in zip(values, columns.box_names, strict=True)
        ]
        if self._classes is not None and label not in self._classes:
            self._unknown.setdefault(name, (row.line, label))
        objects.boxes.append(corners(box, columns.format))
        objects.names.append(label)

    @staticmethod
    def _add_size(row: CsvRow, places: Sequence[int], objects: Objects) -> None:
        width, height = (_number(row.values[place].strip(), "its size") for place in places)
        if not (width > 0 and height > 0 and width % 1 == height % 1 == 0):
            raise ValueError(f"the image has {width:g} x {height:g} pixels")
        size = int(width), int(height)
        if objects.size not in (None, (1, 1), size):
            raise ValueError(f"the image has {size} pixels here and {objects.size} above")
        objects.size = objects.size or size


def _number(text: str, name: str) -> float:
    if not text:
        raise ValueError(f"{name} is empty")
    try:
        value: float = convert(text, "float", frozenset())
    except ValueError:
        raise ValueError(f"{name} is {text!r}, expected a number") from None
    return value
