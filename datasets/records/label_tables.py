"""Read CSV, TSV or Parquet tables with one or several rows per record."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.datasets.records.matching import plain

IMAGE_COLUMNS = ("image", "file_name", "filename", "file", "path", "image_path", "image_name",
                 "image_id", "imageid", "image index", "key")  # fmt: skip
"""Usual names of the key column, case-insensitive."""
LIST = "\x1f"
"""Terminates each list item in Parquet."""


def check_delimiter(delimiter: str | None) -> str | None:
    """Return `delimiter`; raise ValueError unless it is one character."""
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
        raise ValueError(
            f"dataset.annotations.delimiter: {delimiter!r}, expected one character, as in ';'"
        )
    return delimiter


def iter_csv(
    path: str, *, delimiter: str | None = ",", where: str
) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line number and the values of each non-empty row, header included.

    Without a delimiter, the first line decides between comma, tab and semicolon.
    """
    width, line = 0, 1
    try:
        with open(path, "rb") as file:
            if delimiter is None:
                first = next((raw for raw in file if raw.strip()), b"").decode("utf-8-sig")
                delimiter = next((each for each in ",\t;" if each in first), ",")
                file.seek(0)
            texts = (raw.decode("utf-8" if n else "utf-8-sig") for n, raw in enumerate(file))
            reader = csv.reader(texts, delimiter=delimiter, strict=True)
            for values in reader:
                width = width or len(values)
                if values and len(values) != width:
                    raise ValueError(
                        f"{where}: line {line}: got {len(values)} values, expected {width}; put "
                        f'values that contain the delimiter {delimiter!r} in "quotes"'
                    )
                if values:
                    yield line, values
                line = reader.line_num + 1
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"{where}: line {line}: cannot be read as a CSV in UTF-8 ({error}); save it as such"
        ) from error


@dataclass(frozen=True, slots=True)
class LabelTable:
    """A table that describes records.

    `columns` are stripped texts, [n] each; a missing value is empty. `lines` are the line or row
    numbers of the rows, as `unit` says.
    """

    where: str
    columns: dict[str, list[str]]
    lines: Sequence[int]
    unit: str = "line"

    @classmethod
    def read(
        cls,
        path: str,
        *,
        delimiter: str | None = None,
        header: Sequence[str] | None = None,
        where: str,
    ) -> LabelTable:
        """Read a table."""
        if path.endswith(".parquet"):
            return cls._read_parquet(path, where)
        rows = iter_csv(path, delimiter=delimiter, where=where)
        first = next(rows, None)
        if first is None:
            raise ValueError(f"{where}: it is empty; write a first line with the columns' names")
        line, values = first
        names = [name.strip() for name in header or values]
        if len(names) != len(values):
            raise ValueError(
                f"{where}: line {line}: got {len(values)} values, and "
                f"dataset.annotations.header names {len(names)} columns; name them all"
            )
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{where}: line {line}: column {name!r} stands twice; rename one")
        lines = [line] if header else []
        columns: list[list[str]] = [[value.strip()] if header else [] for value in values]
        for line, values in rows:
            lines.append(line)
            for column, value in zip(columns, values, strict=True):
                column.append(value.strip())
        return cls(where, dict(zip(names, columns, strict=True)), lines)

    @classmethod
    def _read_parquet(cls, path: str, where: str) -> LabelTable:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(path, partitioning=None)
        except (OSError, pa.ArrowException) as error:
            raise ValueError(
                f"{where}: cannot be read as Parquet ({str(error).splitlines()[0][:100]})"
            ) from error
        columns = {name: list(map(_text, table[name].to_pylist())) for name in table.column_names}
        return cls(where, columns, range(table.num_rows), "row")

    def at(self, row: int) -> str:
        """Return the line of a row, for messages."""
        return f"{self.unit} {self.lines[row]}"

    @property
    def shown(self) -> str:
        """Return the column names, for messages."""
        return ", ".join(map(repr, self.columns))

    def check(self, *given: str | None) -> None:
        """Raise ValueError for configured columns that the table lacks."""
        for name in given:
            if name is not None and name not in self.columns:
                raise ValueError(f"{self.where}: no column {name!r}; columns: {self.shown}")

    def usual(self, known: Sequence[str]) -> str | None:
        """Return the first column with one of the `known` names, case-insensitive."""
        lower = {name.lower(): name for name in self.columns}
        return next((lower[name] for name in known if name in lower), None)

    def column(self, given: str | None, known: Sequence[str], what: str, setting: str) -> str:
        """Find a column by its configured name, or else by its usual names."""
        self.check(given)
        if (found := given or self.usual(known)) is not None:
            return found
        remedy = f"name it by {setting}"
        if len(self.columns) == 1:
            remedy = "set dataset.annotations.delimiter"
        raise ValueError(
            f"{self.where}: no column {what}, such as {known[0]!r}; columns: {self.shown}; {remedy}"
        )

    def numbers(self, column: str) -> NDArray[np.float64]:
        """Parse a column as numbers, float64 [n]."""
        values = np.empty(len(self.lines))
        for row, text in enumerate(self.columns[column]):
            try:
                values[row] = number_of(text, column)
            except ValueError as error:
                raise ValueError(f"{self.where}: {self.at(row)}: {error}") from None
        return values

    def rows_of(self, column: str) -> dict[str, list[int]]:
        """Group the rows by record name, in the order of the table."""
        rows: dict[str, list[int]] = {}
        for row, name in enumerate(self.columns[column]):
            if not name:
                raise ValueError(
                    f"{self.where}: {self.at(row)}: {column!r} is empty; fill it in, or remove the "
                    f"{self.unit}"
                )
            rows.setdefault(plain(name), []).append(row)
        if not rows:
            raise ValueError(f"{self.where}: it contains no rows; nothing to read")
        return rows


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return "".join(f"{_text(item)}{LIST}" for item in value)
    return str(int(value)) if isinstance(value, bool) else str(value).strip()


def number_of(text: str, name: str) -> float:
    """Parse a number; raise ValueError with the column's name."""
    if not text:
        raise ValueError(f"{name} is empty")
    try:
        if "_" in text:  # Python allows underscores in numbers
            raise ValueError
        return float(text)
    except ValueError:
        raise ValueError(f"{name} is {text[:100]!r}, expected a number") from None
