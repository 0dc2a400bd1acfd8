"""Match table rows with records; base of the components that read a table."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from penstock.core.contracts import RecordAnnotations, RecordsToLabel
from penstock.datasets.annotations.rows import LabelSource
from penstock.datasets.records.label_files import LabelFile, find_labels
from penstock.datasets.records.label_tables import IMAGE_COLUMNS, LabelTable, check_delimiter
from penstock.datasets.records.matching import matched


class KeyedTable(ABC):
    """Annotations from a table with a column of record names; see `CsvBoxes` for the arguments."""

    name: ClassVar[str]
    taken: ClassVar[str]
    accepts: ClassVar[str] = "empty"

    def __init__(
        self,
        path: str,
        *,
        image_column: str | None,
        header: list[str] | None,
        delimiter: str | None,
        missing: str | None,
    ) -> None:
        self.path = path
        self.image_column = image_column
        self.header = header
        self.delimiter = check_delimiter(delimiter)
        self.missing = missing

    def of(self, records: RecordsToLabel) -> Sequence[RecordAnnotations]:
        """Read the annotations of records; see `core.contracts.Annotations`."""
        path, where = find_labels(self.name, "file", self.path, records)
        source = LabelSource(self.name, vars(self), records, [LabelFile.at(path)], where)
        return self.rows(source, path)

    @abstractmethod
    def rows(self, source: LabelSource, path: str) -> Sequence[RecordAnnotations]:
        """Return the annotations of `source` from the file at `path`."""

    def open(self, path: str, where: str) -> tuple[LabelTable, str]:
        """Read the table, and find its column of names."""
        table = LabelTable.read(path, delimiter=self.delimiter, header=self.header, where=where)
        return table, table.column(
            self.image_column, IMAGE_COLUMNS, "of the images' names",
            "dataset.annotations.image_column",
        )  # fmt: skip

    def match(
        self, table: LabelTable, column: str, records: RecordsToLabel
    ) -> list[list[int] | None]:
        """Return the rows of each record, or None for a record without rows."""
        rows = table.rows_of(column)
        names = matched(
            records.keys,
            list(rows),
            self.missing,
            place=records.place,
            where=table.where,
            taken=self.taken,
            setting=f"dataset.annotations.missing={self.accepts}",
            # A file for both splits has rows of the other split.
            its_own=not records.part or "{part}" in self.path,
            line_of=lambda name: table.at(rows[name][0]),
        )
        return [None if name is None else rows[name] for name in names]


class BadCells:
    """Counts bad cells by column, and describes them."""

    def __init__(self, table: LabelTable, path: str) -> None:
        self._table = table
        self._file = os.path.basename(path)
        self._columns: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, row: int, column: str, error: object) -> str:
        """Count a bad cell, and return the cause for its record."""
        cause = f"{self._table.at(row)} of {self._file}: {error}"
        self._columns[column] += 1
        return self._first.setdefault(column, cause) and cause

    def check(self, remedy: str) -> None:
        """Raise ValueError for a column that is bad in most rows."""
        for column, count in self._columns.items():
            if 2 * count > len(self._table.lines):
                raise ValueError(
                    f"{self._table.where}: {self._first[column]}; most rows are like that: {remedy}"
                )
