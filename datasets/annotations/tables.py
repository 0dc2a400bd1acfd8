"""Read labels, values and boxes of images from tables: CSV, TSV or Parquet."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import RecordsToLabel
from penstock.core.registry import register
from penstock.datasets.annotations.label_source import (
    RAREST_LABEL,
    Found,
    LabelSource,
    Objects,
    RecordFields,
    rarest,
)
from penstock.datasets.records.label_tables import IMAGE_COLUMNS, LabelTable, number_of
from penstock.datasets.records.labels import MISSING, USUAL_LABELS, class_ids, is_missing, no_label

# Usual names, case-insensitive.
_LABELS = ("labels", "label", "tags", "tag", "classes", "class", "class_name", "label_name",
           "labelname", "category", "categories", "attribute_ids", "finding labels")  # fmt: skip
_WORDS = {"true": "1", "false": "0", "yes": "1", "no": "0"}


class _KeyedTable:
    """A table with a column of record names; `places` are records and their rows."""

    def __init__(self, source: LabelSource) -> None:
        self.source, self.known = source, source.records.classes
        self.table = LabelTable.read(source.path, where=source.where)
        setting, image = "dataset.annotations.image_column", source.component.image_column
        image = self.table.column(image, IMAGE_COLUMNS, "of the images' names", setting)
        self.others = [name for name in self.table.columns if name != image]
        rows = self.table.rows_of(image)
        matches = enumerate(source.match(list(rows)))
        self.places = [
            (record, row) for record, name in matches for row in rows.get(name or "", ())
        ]

    def numbers(
        self, names: Sequence[str], parse: Callable[[str], float], default: float, remedy: str
    ) -> NDArray[np.float32]:
        """Return the row of each record, float32 [n, K], or the `default`."""
        self.table.check(*names)
        if not names:
            said = f"no columns but {self.table.shown}; {remedy}"
            raise ValueError(f"{self.table.where}: {said}")
        numbers, keys = self.table.numbers(names, parse, remedy), self.source.records.keys
        found = np.full((len(keys), len(names)), default, np.float32)
        seen: dict[int, int] = {}
        for record, row in self.places:
            found[record] = numbers[row]
            if seen.setdefault(record, row) != row:
                said = f"{keys[record][:100]!r} has an earlier row too"
                remedy = "keep one row, or crop objects such as faces to images of their own"
                raise self.table.error(row, f"{said}; {remedy}")
        return found


@dataclass
class _FromTable(ABC):
    """Annotations from a keyed table; see `CsvLabels` for the options."""

    path: str = "annotations/{part}.csv"
    _: KW_ONLY
    image_column: str | None = None
    missing: Literal["empty", "error"] | None = None

    def of(self, records: RecordsToLabel) -> list[RecordFields]:
        source = LabelSource.find(self, records, "file", self.path)
        return [RecordFields(source.table(lambda: self.read(_KeyedTable(source))))]

    @abstractmethod
    def read(self, keyed: _KeyedTable) -> Found:
        """Read the annotations of each record from its rows."""


@register("annotations", "labels_csv")
@dataclass
class CsvLabels(_FromTable):
    """Read several labels per image from a CSV or Parquet file.

    The labels are in one column (``cat|dog``, or a row each), or a 0/1 column per class. Records
    get ``labels`` float32 [C]: 1, 0, or NaN for unknown (an empty cell), which the loss ignores.

    Args:
        path: The file, in the data's folder or beside it; ``{part}`` is train or val.
        image_column: Column of image names; None: ``image``, ``filename`` or another usual name.
        label_column: Column of labels; None: a usual name, or else every column is a class.
        separator: Mark between labels, or ``space``. None: the one of ``| ; ,`` in the file.
        classes: Class names by id; None: the sorted labels, or the columns in their order.
        minus_one: Meaning of -1 in a class column: ``unknown`` or ``absent``; None: -1 is an error.
        missing: Accept images without rows as ``empty``, or raise an ``error``. None: up to half.
    """

    label_column: str | None = None
    separator: str | None = None
    classes: list[str] | None = None
    minus_one: Literal["absent", "unknown"] | None = None

    def read(self, keyed: _KeyedTable) -> Found:
        table, given = keyed.table, keyed.known.get("labels") or self.classes
        table.check(self.label_column)
        if column := self.label_column or table.usual(_LABELS):
            found, names = self._listed(keyed, column, given)
        else:
            names = list(given or keyed.others)
            remedy = "set dataset.annotations.classes, or dataset.annotations.label_column"
            found = keyed.numbers(names, self._value, 0, remedy)
        columns = {RAREST_LABEL: rarest(len(found), *np.nonzero(found == 1))}
        return Found([{"labels": row} for row in found], {"labels": names}, columns)

    def _listed(
        self, keyed: _KeyedTable, column: str, given: Sequence[str] | None
    ) -> tuple[NDArray[np.float32], Sequence[str]]:
        """Read labels from one column; also return the class names."""
        table, cells = keyed.table, keyed.table.columns[column]
        text = "\n".join(cells[row] for _, row in keyed.places)
        marks = [mark for mark in "|;," if mark in text]
        if self.separator is None and (len(marks) > 1 or (not marks and " " in text)):
            said = f"the column {column!r} has {' and '.join(marks) or 'spaces'}; name the mark "
            example = "between labels by dataset.annotations.separator='|', or separator=space"
            raise ValueError(f"{table.where}: {said}{example}")
        mark = None if self.separator == "space" else self.separator or "".join(marks) or "|"
        labels: list[tuple[int, str]] = []
        for record, row in keyed.places:
            parts = [part.strip() for part in cells[row].split(mark)]
            if wrong := [part for part in parts if part and is_missing(part, given)]:
                raise table.error(row, no_label(wrong[0], "dataset.annotations.classes"))
            labels += [(record, part) for part in parts if part]
        ids, names = class_ids([label for _, label in labels], given, where=table.where)
        found = np.zeros((len(keyed.source.records.keys), len(names)), np.float32)
        found[[record for record, _ in labels], ids] = 1
        return found, names

    def _value(self, text: str) -> float:
        """Return 1 for present, 0 for absent, or NaN for unknown."""
        number = _number(_WORDS.get(text.lower(), text))
        if number == -1 and self.minus_one is not None:
            return 0.0 if self.minus_one == "absent" else math.nan
        if number in (0, 1) or math.isnan(number):
            return number
        said = "expected 1, 0 or nothing (for -1, set dataset.annotations.minus_one)"
        raise ValueError(f"it is {text[:100]!r}, {said}")


@register("annotations", "values_csv")
@dataclass
class CsvValues(_FromTable):
    """Read measured numbers from a CSV or Parquet file with a row per image.

    Records get ``values`` float32 [K]; NaN is unknown, which the loss ignores.

    Args:
        path: As of ``labels_csv``.
        image_column: As of ``labels_csv``.
        value_columns: Columns of numbers; None: all other columns.
        missing: As of ``labels_csv``; values are unknown.
    """

    value_columns: list[str] | None = None

    def read(self, keyed: _KeyedTable) -> Found:
        names = list(keyed.known.get("values") or self.value_columns or keyed.others)
        remedy = "name the columns of numbers by dataset.annotations.value_columns"
        found = keyed.numbers(names, _number, math.nan, remedy)
        columns = {f"value_{name}": found[:, n] for n, name in enumerate(names)}
        return Found([{"values": row} for row in found], {"values": names}, columns)


def _number(text: str) -> float:
    """Parse a number; return NaN for a missing one."""
    number = math.nan if text in MISSING else number_of(text)
    if math.isinf(number):
        raise ValueError(f"it is {text!r}, expected a finite number")
    return number


BoxFormat = Literal["xyxy", "xywh", "cxcywh"]

# Usual names, case-insensitive and without underscores.
_BOX: dict[tuple[str, ...], BoxFormat] = {
    ("xmin", "ymin", "xmax", "ymax"): "xyxy",
    ("x1", "y1", "x2", "y2"): "xyxy",
    ("left", "top", "right", "bottom"): "xyxy",
    ("xcenter", "ycenter", "width", "height"): "cxcywh",
    ("x", "y", "width", "height"): "xywh",
    ("x", "y", "w", "h"): "xywh",
}


@register("annotations", "boxes_csv")
@dataclass
class CsvBoxes(_FromTable):
    """Read boxes from a CSV file with a row per box.

    Records get ``boxes`` float32 [N, 4] (xyxy, pixels, right and bottom edge exclusive) and
    ``box_labels`` int64 [N]. The file has pixels, or fractions of the image. A row of only the
    name is an image without boxes.

    Args:
        path: As of ``labels_csv``.
        image_column: As of ``labels_csv``.
        label_column: Column of classes; None: ``label``, ``class`` or another usual name.
        box_columns: The four columns; None: ``xmin, ymin, xmax, ymax`` or other usual names.
        box_format: Corners, or a corner or the centre with width and height; None: as named.
        size_columns: Columns of the image's width and height in pixels, to clip boxes.
        rescale: Scale boxes from another image size; false: such a record is bad.
        classes: Class names by id; None: the sorted classes in the file.
        missing: As of ``labels_csv``.
    """

    label_column: str | None = None
    box_columns: tuple[str, str, str, str] | None = None
    box_format: BoxFormat | None = None
    size_columns: tuple[str, str] | None = None
    rescale: bool = False
    classes: list[str] | None = None

    def read(self, keyed: _KeyedTable) -> Found:
        table = keyed.table
        four, box_format = self._columns(table)
        setting = "dataset.annotations.label_column"
        labels = table.columns[table.column(self.label_column, USUAL_LABELS, "of classes", setting)]
        remedy = "name the four columns of a box by dataset.annotations.box_columns"
        numbers = table.numbers([*four, *(self.size_columns or ())], _number, remedy)
        boxes, sizes = numbers[:, :4], numbers[:, 4:]
        if box_format == "cxcywh":
            boxes[:, :2] -= boxes[:, 2:] / 2
        if box_format != "xyxy":
            boxes[:, 2:] += boxes[:, :2]
        finite = boxes[np.isfinite(boxes).all(1)]
        # Most boxes in pixels reach beyond 1.
        shares = bool(len(finite) and np.median(finite.max(1)) <= 1 and (finite % 1).any())
        known = keyed.known.get("box_labels") or self.classes
        objects = Objects(keyed.source)
        for record, row in keyed.places:
            label, size = labels[row], sizes[row].tolist()
            if not all(0 < side < 1 << 31 for side in size):
                raise table.error(row, f"the image has {size} pixels; correct its size")
            if label and is_missing(label, known):
                raise table.error(row, no_label(label, "dataset.annotations.classes"))
            if label:
                objects.boxes.append((record, *boxes[row].tolist()))
                objects.names.append(label)
                objects.sizes |= {record: size} if size and not shares else {}
            elif not np.isnan(boxes[row]).all():
                raise table.error(row, "the class is empty; fill it in, or empty the box")
        return objects.found({}, normalized=shares)

    def _columns(self, table: LabelTable) -> tuple[Sequence[str], BoxFormat]:
        """Return the four columns of a box, and their format."""
        table.check(*(self.box_columns or ()), *(self.size_columns or ()))
        if self.box_columns is not None:
            return self.box_columns, self.box_format or "xyxy"
        bare = {name.lower().replace("_", ""): name for name in table.columns}
        for names, box_format in _BOX.items():
            if set(names) <= bare.keys():
                return [bare[name] for name in names], self.box_format or box_format
        remedy = "name xmin, ymin, xmax, ymax so, or by dataset.annotations.box_columns"
        raise ValueError(f"{table.where}: no columns of boxes among {table.shown}; {remedy}")
