"""Several labels for each image, from a CSV file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import RecordsToLabel
from penstock.core.registry import register
from penstock.datasets.records.label_files import LabelFile, find_labels, marks_of
from penstock.datasets.records.label_tables import (
    IMAGE_COLUMNS,
    LabelTable,
    delimiter_of,
    entries_in_table,
    number_of,
)
from penstock.datasets.records.labels import check_missing, class_ids, is_missing
from penstock.datasets.records.labels import listed as listed_classes
from penstock.datasets.records.number_rows import NumberRows, Numbers, cached_numbers

# As the field writes them, in any case.
_LABELS = ("labels", "label", "tags", "tag", "classes", "class", "class_name", "label_name",
           "labelname", "category", "categories", "attribute_ids", "finding labels")  # fmt: skip
_SEPARATORS = "|;,"
_SPACE = "space"
_WORDS = {"true": "1", "false": "0", "yes": "1", "no": "0", "nan": ""}
_MEANS = {"absent": 0.0, "unknown": float("nan")}

Meaning = Literal["absent", "unknown"]
Row = NDArray[np.float32]
Texts = dict[str, list[tuple[int, str]]]
"""What stands in a column, with its line, by image."""


@register("annotations", "labels_csv")
class CsvLabels:
    """Several labels for each image, from a CSV file.

    A row has an image's name and its labels in one column (``cat|dog``), or a column for each
    class with 1 or 0; the labels of an image may also stand in several rows. Records get
    ``labels`` float32 [C]: 1 for what is there, 0 for what is not, NaN for what is not known, which
    neither loss nor metrics count. An image with a broken row is a bad record. Rows of images that
    are not in the data are left out, and counted where the file is of this data alone.

    Args:
        path: The file, in the data's folder or beside it; ``{part}`` is train or val.
        image_column: The column of the images' names, with or without folders and ending; None:
            ``image``, ``filename`` or another usual name.
        label_column: The column of the labels; None: ``labels``, ``tags`` or the like, else each
            column but the images' is of a class.
        separator: What separates labels in their column, or ``space``; None: the one of ``| ; ,``
            that occurs there.
        classes: Names of the classes by id, which may be the columns that are taken; None: those
            found, sorted (columns in their order).
        empty: In the column of a class, nothing means ``unknown`` or ``absent``.
        minus_one: In the column of a class, -1 means ``unknown`` or ``absent``; None: it is
            refused.
        header: The columns' names, for a file that begins with an image.
        delimiter: What separates values; None: a tab in ``.tsv`` files, else a comma.
        missing: An image without rows has no labels (``empty``), or is an ``error``. None: it has
            none, which is said, and is an error where it is more than half of the images.
    """

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
        self.path = path
        self.image_column = image_column
        self.label_column = label_column
        self.separator = separator
        self.classes = classes
        self.empty: Meaning = empty
        self.minus_one: Meaning | None = minus_one
        self.header = header
        self.delimiter = delimiter_of(delimiter, path)
        self.missing = missing
        if separator == "":
            raise ValueError(
                f"dataset.annotations.separator: {separator!r}, expected characters, as in '|', or "
                f"{_SPACE}"
            )

    def of(self, records: RecordsToLabel) -> list[NumberRows]:
        """Read the labels of a storage's records; see `core.contracts.Annotations`."""
        path, where = find_labels("labels_csv", "file", self.path, records)
        return [
            cached_numbers(
                "labels_csv",
                vars(self),
                records,
                field="labels",
                marks=marks_of([LabelFile.at(path)]),
                read=lambda: self._read(path, records, where),
                where=where,
            )
        ]

    def _read(self, path: str, records: RecordsToLabel, where: str) -> Numbers:
        """Read the labels of each record, and the names of the classes."""
        table = LabelTable.at(path, delimiter=self.delimiter, header=self.header, where=where)
        table.check(self.image_column, self.label_column)
        needed = "of the images' names", "image_column"
        image = self.image_column or table.needed(IMAGE_COLUMNS, *needed)
        given = records.classes.get("labels") or self.classes
        by_class = self.label_column is None and set(self.classes or ()) & set(table.columns)
        column = None if by_class else self.label_column or table.usual(_LABELS)
        lines: dict[str, int] = {}
        if column is None:
            names, found = self._by_class(table, image, given, lines)
            entries = self._entries(lines, records, where)
        else:
            texts: dict[str, list[tuple[int, str]]] = {}
            for line, name, row in table.images(image):
                texts.setdefault(name, []).append((line, row[column]))
            lines = {name: of_image[0][0] for name, of_image in texts.items()}
            entries = self._entries(lines, records, where)
            # A file for all parts has labels that may be those of another alone.
            mine = {name: texts[name] for name in entries if name is not None}
            names, found = self._listed(mine, column, given, where)
        nothing = np.zeros(len(names), np.float32)
        return [nothing if entry is None else found[entry] for entry in entries], names

    def _entries(
        self, lines: dict[str, int], records: RecordsToLabel, where: str
    ) -> list[str | None]:
        """Match the records with the images of the file, by the lines where these stand."""
        its_own = not records.part or "{part}" in self.path
        entries = entries_in_table(records.keys, lines, where=where, its_own=its_own)
        check_missing(
            records.keys, entries, self.missing, where=where, what="row",
            taken="taken as without labels", setting="dataset.annotations.missing=empty",
        )  # fmt: skip
        return entries

    def _listed(
        self, texts: Texts, column: str, given: Sequence[str] | None, where: str
    ) -> tuple[Sequence[str], dict[str, Row | str]]:
        """Read labels that stand in one column: the classes, and for each image which it has."""
        separator = self.separator or self._separator(texts, column, where)
        at = None if separator == _SPACE else separator
        listed: dict[str, list[str]] = {}
        for name, of_image in texts.items():
            parts = [(line, part.strip()) for line, text in of_image for part in text.split(at)]
            listed[name] = [part for _, part in parts if part]
            for line, part in parts:
                if part and is_missing(part, given):
                    raise ValueError(
                        f"{where}: line {line}: the label is missing ({part!r}); fill it in, leave "
                        f"{column!r} empty for an image without labels, or, if it is a class, list "
                        f"all classes: {listed_classes('dataset.annotations.classes', part)}"
                    )
        flat = [label for labels in listed.values() for label in labels]
        ids, names = class_ids(flat, given, where=where)
        if not names:
            raise ValueError(
                f"{where}: no image has a label in the column {column!r}; name another by "
                f"dataset.annotations.label_column"
            )
        found: dict[str, Row | str] = {}
        start = 0
        for name, labels in listed.items():
            row = found[name] = np.zeros(len(names), np.float32)
            row[ids[start : start + len(labels)]] = 1
            start += len(labels)
        return names, found

    @staticmethod
    def _separator(texts: Texts, column: str, where: str) -> str:
        """Find what separates labels."""
        rows = [row for of_image in texts.values() for row in of_image]
        occurring = [each for each in _SEPARATORS if any(each in text for _, text in rows)]
        if len(occurring) > 1:
            raise ValueError(
                f"{where}: the column {column!r} has {' and '.join(occurring)}; say which of them "
                f"separates labels: dataset.annotations.separator='{occurring[0]}'"
            )
        spaced = next(((line, text) for line, text in rows if " " in text), None)
        if not occurring and spaced and len(rows) == len(texts):
            raise ValueError(
                f"{where}: line {spaced[0]}: {spaced[1]!r} is one label or several; type "
                f"dataset.annotations.separator=space if spaces separate them, or separator='|' "
                f"if it is one"
            )
        return occurring[0] if occurring else _SEPARATORS[0]

    def _by_class(
        self, table: LabelTable, image: str, given: Sequence[str] | None, lines: dict[str, int]
    ) -> tuple[Sequence[str], dict[str, Row | str]]:
        """Read labels that have a column each: the classes, and for each image which it has.

        Args:
            table: The table, whose rows are read.
            image: The column of the images' names.
            given: The classes that are settled.
            lines: Filled with the line in which each image stands first.
        """
        columns = [name for name in table.columns if name != image]
        names = list(given or columns)
        taken = [(place, name) for place, name in enumerate(names) if name in columns]
        if not taken:
            raise ValueError(
                f"{table.head}: no column of labels, such as 'labels', and none of a class; "
                f"columns: {table.shown}; name the one of labels by "
                f"dataset.annotations.label_column, or those of classes by classes"
            )
        if more := [name for name in columns if name not in names and self.classes is None]:
            raise ValueError(
                f"{table.head}: the column {more[0]!r} is none of the {len(names)} classes of the "
                f"training data; take it out, or name the columns that are: "
                f"dataset.annotations.classes=[{','.join(names)}]"
            )
        found: dict[str, Row | str] = {}
        wrong: dict[str, list[str]] = {}
        for line, name, values in table.images(image):
            lines.setdefault(name, line)
            # A class of the training data that has no column here is not known.
            row = found.setdefault(name, np.full(len(names), np.nan, np.float32))
            for place, column in taken:
                try:
                    value = self._value(values[column])
                except ValueError as error:
                    said = f"line {line}: column {column!r} {error}"
                    wrong.setdefault(column, []).append(said)
                    found[name] = said
                    continue
                if not isinstance(row, str):
                    row[place] = np.fmax(row[place], value)
        for causes in wrong.values():
            if 2 * len(causes) > len(lines):
                raise ValueError(
                    f"{table.where}: {causes[0]}; most rows are like that: if it is no class, name "
                    f"those that are by dataset.annotations.classes, or the column of labels by "
                    f"label_column"
                )
        return names, found

    def _value(self, text: str) -> float:
        """Read whether a label is there: 1 or 0, or NaN where that is not known."""
        text = _WORDS.get(text.lower(), text)
        if not text:
            return _MEANS[self.empty]
        number = number_of(text, "has")
        if number == -1 and self.minus_one is not None:
            return _MEANS[self.minus_one]
        if number in (0, 1):
            return number
        remedy = "; say what it means: dataset.annotations.minus_one=absent, or unknown"
        raise ValueError(f"has {text!r}, expected 1, 0 or nothing{remedy if number == -1 else ''}")
