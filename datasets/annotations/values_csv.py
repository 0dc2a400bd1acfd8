"""Numbers that were measured of each image, from a CSV file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

import numpy as np

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
from penstock.datasets.records.labels import check_missing
from penstock.datasets.records.number_rows import NumberRows, Numbers, cached_numbers


@register("annotations", "values_csv")
class CsvValues:
    """Numbers that were measured of each image, from a CSV file: a row for each.

    Records get ``values`` float32 [K], NaN for what is not known, which neither loss nor metrics
    count. An image with a broken row, or two rows, is a bad record. Rows of images that are not in
    the data are left out, and counted where the file is of this data alone.

    Args:
        path: The file, in the data's folder or beside it; ``{part}`` is train or val.
        image_column: The column of the images' names, with or without folders and ending; None:
            ``image``, ``filename`` or another usual name.
        value_columns: The columns of the numbers; None: all others.
        header: The columns' names, for a file that begins with an image.
        delimiter: What separates values; None: a tab in ``.tsv`` files, else a comma.
        missing: Of an image without a row the values are not known (``unknown``), or it is an
            ``error``. None: they are not, which is said, and is an error where it is more than
            half of the images.
    """

    def __init__(
        self,
        path: str = "annotations/{part}.csv",
        *,
        image_column: str | None = None,
        value_columns: list[str] | None = None,
        header: list[str] | None = None,
        delimiter: str | None = None,
        missing: Literal["unknown", "error"] | None = None,
    ) -> None:
        self.path = path
        self.image_column = image_column
        self.value_columns = value_columns
        self.header = header
        self.delimiter = delimiter_of(delimiter, path)
        self.missing = missing

    def of(self, records: RecordsToLabel) -> list[NumberRows]:
        """Read the values of a storage's records; see `core.contracts.Annotations`."""
        path, where = find_labels("values_csv", "file", self.path, records)
        return [
            cached_numbers(
                "values_csv",
                vars(self),
                records,
                field="values",
                marks=marks_of([LabelFile.at(path)]),
                read=lambda: self._read(path, records, where),
                where=where,
            )
        ]

    def _read(self, path: str, records: RecordsToLabel, where: str) -> Numbers:
        """Read the values of each record, and their names."""
        table = LabelTable.at(path, delimiter=self.delimiter, header=self.header, where=where)
        table.check(self.image_column)
        needed = "of the images' names", "image_column"
        image = self.image_column or table.needed(IMAGE_COLUMNS, *needed)
        others = [name for name in table.columns if name != image]
        names = list(records.classes.get("values") or self.value_columns or others)
        table.check(*names)
        if not names:
            raise ValueError(
                f"{table.head}: no column of numbers, only {table.shown}; say what separates them "
                f"by dataset.annotations.delimiter"
            )
        lines, found = self._rows(table, image, names, os.path.basename(path))
        its_own = not records.part or "{part}" in self.path
        entries = entries_in_table(records.keys, lines, where=where, its_own=its_own)
        check_missing(
            records.keys, entries, self.missing, where=where, what="row",
            taken="taken as of unknown values", setting="dataset.annotations.missing=unknown",
        )  # fmt: skip
        unknown = np.full(len(names), np.nan, np.float32)
        return [unknown if entry is None else found[entry] for entry in entries], names

    @staticmethod
    def _rows(
        table: LabelTable, image: str, names: Sequence[str], file: str
    ) -> tuple[dict[str, int], dict[str, np.ndarray | str]]:
        """Read the line and the values of each image, or what is wrong with them.

        Raises:
            ValueError: A column is none of numbers.
        """
        lines: dict[str, int] = {}
        found: dict[str, np.ndarray | str] = {}
        wrong: dict[str, list[str]] = {}
        for line, name, row in table.images(image):
            if name in lines:
                found[name] = f"line {line} of {file}: {name!r} stands in line {lines[name]} too"
                continue
            lines[name] = line
            values = np.full(len(names), np.nan, np.float32)
            found[name] = values
            for place, column in enumerate(names):
                if not row[column]:
                    continue
                try:
                    values[place] = number_of(row[column], f"column {column!r}")
                    if np.isinf(values[place]):
                        raise ValueError(f"column {column!r} is {row[column]!r}, which is no size")
                except ValueError as error:
                    found[name] = f"line {line} of {file}: {error}"
                    wrong.setdefault(column, []).append(str(found[name]))
        for causes in wrong.values():
            if 2 * len(causes) > len(lines):
                raise ValueError(
                    f"{table.where}: {causes[0]}; most rows are like that: name the columns of "
                    f"numbers by dataset.annotations.value_columns"
                )
        return lines, found
