"""Read measured numbers per image from a table."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import RecordsToLabel
from penstock.core.registry import register
from penstock.datasets.annotations.keyed_tables import BadCells, KeyedTable
from penstock.datasets.annotations.rows import LabelSource, NumberRows, Numbers
from penstock.datasets.records.label_tables import number_of


@register("annotations", "values_csv")
class CsvValues(KeyedTable):
    """Read measured numbers from a CSV or Parquet file with a row per image.

    Records get ``values`` float32 [K]; NaN means unknown, which loss and metrics ignore. A broken
    row, or two rows, make a record bad. Rows of images outside the data are ignored, with a
    warning if the file describes only this data.

    Args:
        path: The file, in the data's folder or beside it; ``{part}`` is train or val.
        image_column: Column of image names, with or without folders and extension; None:
            ``image``, ``filename`` or another usual name.
        value_columns: Columns of numbers; None: all other columns.
        header: Column names, for a file without a header line.
        delimiter: Separates values; None: a comma, tab or semicolon, by the first line.
        missing: Accept images without a row as ``unknown``, or raise an ``error``. None: accept
            them with a warning, up to half of the images.
    """

    name = "values_csv"
    taken = "taken as of unknown values"
    accepts = "unknown"

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
        super().__init__(
            path, image_column=image_column, header=header, delimiter=delimiter, missing=missing
        )
        self.value_columns = value_columns

    def rows(self, source: LabelSource, path: str) -> list[NumberRows]:
        """Return the values of each record."""
        return source.numbers("values", lambda: self._read(path, source.records, source.where))

    def _read(self, path: str, records: RecordsToLabel, where: str) -> Numbers:
        table, image = self.open(path, where)
        others = [name for name in table.columns if name != image]
        names = list(records.classes.get("values") or self.value_columns or others)
        table.check(*names)
        if not names:
            raise ValueError(
                f"{where}: no column of numbers, only {table.shown}; set "
                f"dataset.annotations.delimiter"
            )
        matches = self.match(table, image, records)
        several = [rows for rows in matches if rows and len(rows) > 1]
        if 2 * len(several) > sum(rows is not None for rows in matches):
            first, second, *_ = several[0]
            raise ValueError(
                f"{where}: {len(several):,} images have several rows, such as "
                f"{table.columns[image][first][:100]!r} in {table.at(first)} and "
                f"{table.at(second)}: several objects in one image, such as faces, cannot have "
                f"separate values; crop each object to an image, or use "
                f"dataset/annotations=boxes_csv"
            )
        cells = BadCells(table, path)
        found: list[NDArray[np.float32] | str] = []
        for rows in matches:
            values: NDArray[np.float32] | str = np.full(len(names), np.nan, np.float32)
            if rows and len(rows) > 1:
                name = table.columns[image][rows[1]]
                said = f"{name[:100]!r} is in {table.at(rows[0])} too"
                values = cells.add(rows[1], image, said)
            for place, column in enumerate(names if rows and len(rows) == 1 else ()):
                assert rows
                text = table.columns[column][rows[0]]
                try:
                    number = number_of(text, f"column {column!r}") if text else np.nan
                    if np.isinf(number):
                        raise ValueError(
                            f"column {column!r} is {text[:100]!r}, expected a finite number"
                        )
                except ValueError as error:
                    values = cells.add(rows[0], column, error)
                if not isinstance(values, str):
                    values[place] = number
            found.append(values)
        cells.check("name the columns of numbers by dataset.annotations.value_columns")
        return found, names
