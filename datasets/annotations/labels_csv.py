"""Read several labels per image from a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import RecordsToLabel
from penstock.core.registry import register
from penstock.datasets.annotations.keyed_tables import BadCells, KeyedTable
from penstock.datasets.annotations.rows import LabelSource, NumberRows, Numbers
from penstock.datasets.records.label_tables import LIST, LabelTable, number_of
from penstock.datasets.records.labels import class_ids, is_missing
from penstock.datasets.records.labels import listed as listed_classes

# Usual names, case-insensitive.
_LABELS = ("labels", "label", "tags", "tag", "classes", "class", "class_name", "label_name",
           "labelname", "category", "categories", "attribute_ids", "finding labels")  # fmt: skip
_SEPARATORS = f"{LIST}|;,"
_SPACE = "space"
_WORDS = {"true": "1", "false": "0", "yes": "1", "no": "0", "nan": ""}
_MEANS = {"absent": 0.0, "unknown": float("nan")}

Meaning = Literal["absent", "unknown"]
Matches = Sequence[list[int] | None]
"""The rows of the table for each record."""


@register("annotations", "labels_csv")
class CsvLabels(KeyedTable):
    """Read several labels per image from a CSV or Parquet file.

    A row contains an image's name and its labels in one column (``cat|dog``), or one 0/1 column
    per class. The labels of an image may span several rows. Records get ``labels`` float32 [C]: 1
    present, 0 absent, NaN unknown, which loss and metrics ignore. A broken row makes its record
    bad. Rows of images outside the data are ignored, with a warning if the file describes only
    this data.

    Args:
        path: The file, in the data's folder or beside it; ``{part}`` is train or val.
        image_column: Column of image names, with or without folders and extension; None:
            ``image``, ``filename`` or another usual name.
        label_column: Column of labels; None: ``labels``, ``tags`` or another usual name. Without
            such a column, every other column is a class.
        separator: Separates labels in their column; ``space`` for spaces. None: the one of
            ``| ; ,`` in the file.
        classes: Class names by id, which may select columns; None: the sorted labels, or the
            columns in their order.
        empty: Meaning of an empty cell in a class column: ``unknown`` or ``absent``.
        minus_one: Meaning of -1 in a class column: ``unknown`` or ``absent``; None: -1 is an error.
        header: Column names, for a file without a header line.
        delimiter: Separates values; None: a comma, tab or semicolon, by the first line.
        missing: Accept images without rows as ``empty``, or raise an ``error``. None: accept them
            with a warning, up to half of the images.
    """

    name = "labels_csv"
    taken = "taken as without labels"

    def __init__(
        self,
        path: str = "annotations/{part}.csv",
        *,
        image_column: str | None = None,
        label_column: str | None = None,
        separator: str | None = None,
        classes: list[str] | None = None,
        empty: Meaning = "unknown",
        minus_one: Meaning | None = None,
        header: list[str] | None = None,
        delimiter: str | None = None,
        missing: Literal["empty", "error"] | None = None,
    ) -> None:
        super().__init__(
            path, image_column=image_column, header=header, delimiter=delimiter, missing=missing
        )
        self.label_column = label_column
        self.separator = separator
        self.classes = classes
        self.empty: Meaning = empty
        self.minus_one: Meaning | None = minus_one
        if separator == "":
            raise ValueError(
                f"dataset.annotations.separator: {separator!r}, expected characters, as in '|', or "
                f"{_SPACE}"
            )

    def rows(self, source: LabelSource, path: str) -> list[NumberRows]:
        """Return the labels of each record."""
        return source.numbers("labels", lambda: self._read(path, source.records, source.where))

    def _read(self, path: str, records: RecordsToLabel, where: str) -> Numbers:
        table, image = self.open(path, where)
        table.check(self.label_column)
        given = records.classes.get("labels") or self.classes
        by_class = self.label_column is None and set(self.classes or ()) & set(table.columns)
        column = None if by_class else self.label_column or table.usual(_LABELS)
        if column is None:
            return self._by_class(table, records, image, given, path)
        matches = self.match(table, image, records)
        return self._listed(table, matches, column, given)

    def _listed(
        self, table: LabelTable, matches: Matches, column: str, given: Sequence[str] | None
    ) -> Numbers:
        """Read labels from one column."""
        cells = table.columns[column]
        separator = self.separator or self._separator(table, matches, column)
        at = None if separator == _SPACE else separator
        labels: list[list[str]] = []
        for rows in matches:
            labels.append([])
            for row in rows or ():
                parts = [part.strip() for part in cells[row].split(at)]
                labels[-1] += filter(None, parts)
                if wrong := [part for part in parts if part and is_missing(part, given)]:
                    raise ValueError(
                        f"{table.where}: {table.at(row)}: the label is missing ({wrong[0]!r}); "
                        f"fill it in, leave {column!r} empty for an image without labels, or, if "
                        f"it is a class, list all classes: "
                        f"{listed_classes('dataset.annotations.classes', wrong[0])}"
                    )
        ids, names = class_ids([one for each in labels for one in each], given, where=table.where)
        if not names:
            raise ValueError(
                f"{table.where}: no image has a label in the column {column!r}; name another by "
                f"dataset.annotations.label_column"
            )
        found = np.zeros((len(matches), len(names)), np.float32)
        found[np.repeat(np.arange(len(matches)), list(map(len, labels))), ids] = 1
        return list(found), names

    @staticmethod
    def _separator(table: LabelTable, matches: Matches, column: str) -> str:
        rows = [row for of_record in matches for row in of_record or ()]
        cells = table.columns[column]
        occurring = [each for each in _SEPARATORS if any(each in cells[row] for row in rows)]
        if LIST in occurring:
            return LIST
        if len(occurring) > 1:
            raise ValueError(
                f"{table.where}: the column {column!r} has {' and '.join(occurring)}; name the one "
                f"that separates labels: dataset.annotations.separator='{occurring[0]}'"
            )
        spaced = next((row for row in rows if " " in cells[row]), None)
        one_row_each = len(rows) == sum(of_record is not None for of_record in matches)
        if not occurring and spaced is not None and one_row_each:
            raise ValueError(
                f"{table.where}: {table.at(spaced)}: {cells[spaced][:100]!r} is one label or "
                f"several; type dataset.annotations.separator=space if spaces separate them, or "
                f"separator='|' if it is one"
            )
        return occurring[0] if occurring else "|"

    def _by_class(
        self,
        table: LabelTable,
        records: RecordsToLabel,
        image: str,
        given: Sequence[str] | None,
        path: str,
    ) -> Numbers:
        """Read labels from a column per class."""
        columns = [name for name in table.columns if name != image]
        names = list(given or columns)
        taken = [(place, name) for place, name in enumerate(names) if name in columns]
        if not taken:
            raise ValueError(
                f"{table.where}: no column of labels, such as 'labels', and none of a class; "
                f"columns: {table.shown}; name the one of labels by "
                f"dataset.annotations.label_column, or those of classes by classes"
            )
        if more := [name for name in columns if name not in names and self.classes is None]:
            raise ValueError(
                f"{table.where}: the column {more[0]!r} is none of the {len(names)} classes of the "
                f"training data; take it out, or name the columns that are: "
                f"dataset.annotations.classes=[{','.join(names)}]"
            )
        cells = BadCells(table, path)
        matches = self.match(table, image, records)
        found: list[NDArray[np.float32] | str] = []
        for rows in matches:
            # A class without a column here is unknown.
            values = np.full(len(names), 0 if rows is None else np.nan, np.float32)
            cause = ""
            for row in rows or ():
                for place, column in taken:
                    try:
                        value = self._value(table.columns[column][row])
                    except ValueError as error:
                        cause = cells.add(row, column, f"column {column!r} {error}")
                        continue
                    values[place] = np.fmax(values[place], value)
            found.append(cause or values)
        cells.check(
            "if it is not a class, name the classes by dataset.annotations.classes, or the column "
            "of labels by label_column"
        )
        return found, names

    def _value(self, text: str) -> float:
        """Return 1 for present, 0 for absent, or NaN for unknown."""
        text = _WORDS.get(text.lower(), text)
        if not text:
            return _MEANS[self.empty]
        number = number_of(text, "has")
        if number == -1 and self.minus_one is not None:
            return _MEANS[self.minus_one]
        if number in (0, 1):
            return number
        remedy = "; say what it means: dataset.annotations.minus_one=absent, or unknown"
        raise ValueError(
            f"has {text[:100]!r}, expected 1, 0 or nothing{remedy if number == -1 else ''}"
        )
