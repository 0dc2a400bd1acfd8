"""Read CSV, TSV or Parquet tables with one or several rows per record."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.datasets.records.matching import plain

IMAGE_COLUMNS = ("image", "file_name", "filename", "file", "path", "image_path", "image_name",
                 "image_id", "imageid", "image index", "key")  # fmt: skip
"""Usual names of the key column, case-insensitive."""
_FIELD_CHARACTERS = 1 << 25  # the library's default of 1 << 17 is less than a long text


def iter_csv(
    path: str, *, delimiter: str | None = ",", where: str
) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line number and the values of each non-empty row, header included."""
    width, line = 0, 1
    try:
        with open(path, "rb") as file:
            if delimiter is None:
                first = next((raw for raw in file if raw.strip()), b"").decode("utf-8-sig")
                delimiter = next((each for each in ",\t;" if each in first), ",")
                file.seek(0)
            texts = (raw.decode("utf-8" if n else "utf-8-sig") for n, raw in enumerate(file))
            csv.field_size_limit(_FIELD_CHARACTERS)
            reader = csv.reader(texts, delimiter=delimiter, strict=True)
            for values in reader:
                width = width or len(values)
                if values and len(values) != width:
                    said = f"got {len(values)} values, expected {width}; quote those that contain"
                    raise ValueError(f"{where}: line {line}: {said} {delimiter!r}")
                if values:
                    yield line, values
                line = reader.line_num + 1
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"{where}: line {line}: cannot be read as a CSV in UTF-8 ({error}); save it as such"
        ) from error


@dataclass(frozen=True, slots=True)
class LabelTable:
    """A table of records: `columns` of stripped texts, [n] each, and the `lines` of its rows."""

    where: str
    columns: dict[str, list[str]]
    lines: Sequence[int]

    @classmethod
    def read(cls, path: str, *, where: str) -> LabelTable:
        """Read a table, whose first line names the columns."""
        if path.endswith(".parquet"):
            columns = _read_parquet(path, where)
            return cls(where, columns, range(1, 1 + max(map(len, columns.values()), default=0)))
        rows = list(iter_csv(path, delimiter=None, where=where))
        if not rows:
            raise ValueError(f"{where}: it is empty; write a first line with the columns' names")
        line, names = rows.pop(0)
        names = [each.strip() for each in names]
        if twice := [each for each in names if names.count(each) > 1]:
            raise ValueError(f"{where}: line {line}: column {twice[0]!r} stands twice; rename one")
        columns = {each: [values[n].strip() for _, values in rows] for n, each in enumerate(names)}
        return cls(where, columns, [at for at, _ in rows])

    def error(self, row: int, said: str) -> ValueError:
        """Return the error of a row."""
        unit = "row" if isinstance(self.lines, range) else "line"
        return ValueError(f"{self.where}: {unit} {self.lines[row]}: {said}")

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
        said = f"no column {what} among {self.shown}; name it by {setting}"
        raise ValueError(f"{self.where}: {said}, or separate columns by commas, tabs or semicolons")

    def numbers(
        self, columns: Sequence[str], parse: Callable[[str], float], remedy: str
    ) -> NDArray[np.float64]:
        """Parse columns, float64 [n, C]; the error of a wrong row names a `remedy`."""
        values = np.full((len(self.lines), len(columns)), np.nan)
        for place, name in enumerate(columns):
            for row, text in enumerate(self.columns[name]):
                try:
                    values[row, place] = parse(text)
                except ValueError as error:
                    said = f"column {name!r}: {error}; correct it, or {remedy}"
                    raise self.error(row, said) from error
        return values

    def rows_of(self, column: str) -> dict[str, list[int]]:
        """Group the rows by record name, in the order of the table."""
        rows: dict[str, list[int]] = {}
        for row, name in enumerate(self.columns[column]):
            if not name:
                raise self.error(row, f"{column!r} is empty; fill it in")
            rows.setdefault(plain(name), []).append(row)
        if not rows:
            raise ValueError(f"{self.where}: it contains no rows; nothing to read")
        return rows


def _read_parquet(path: str, where: str) -> dict[str, list[str]]:
    from pyarrow import ArrowException, parquet

    try:
        columns = parquet.read_table(path, partitioning=None).to_pydict()
    except (OSError, ArrowException) as error:
        said = str(error).splitlines()[0][:100]
        raise ValueError(f"{where}: cannot be read as Parquet ({said})") from error
    return {name: list(map(_text, values)) for name, values in columns.items()}


def _text(value: object) -> str:
    if isinstance(value, list):
        return "|".join(map(_text, value))
    return "" if value is None else str(value).strip()


def number_of(text: str, name: str = "it") -> float:
    """Parse a number; raise ValueError with its name."""
    try:
        return float("" if "_" in text else text)  # Python allows underscores in numbers
    except ValueError:
        raise ValueError(f"{name} is {text[:100]!r}, expected a number") from None
