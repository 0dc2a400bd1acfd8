"""The columns of a CSV file, read at once: numbers, texts, keys, labels; and what is wrong in it.

`pyarrow.csv` parses the file; strictly, since what it forgives (a quote that never ends swallows
the rest of the file) is looked for first.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.datasets.columnar.names import ColumnRoles, find_roles
from penstock.datasets.files.data_files import refuse_escape
from penstock.datasets.records.label_tables import iter_csv

ColumnType = Literal["int", "float", "str"]

_BLOCK_BYTES = 1 << 25  # no row may be longer
_BOM = b"\xef\xbb\xbf"
# What a guess takes for a number; a code such as 007 stays text.
_INTEGER = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[+-]?(?:(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf)")
_CODE = r"^[+-]?0[0-9]"  # a leading zero that means something, as in 007
# What is taken for an integer where the type is given.
_DIGITS = re.compile(r"[+-]?[0-9]{1,18}")
_LEAST_LONG = 10**18  # the least whole number that is none of these
_ODD_SHARE = 0.05
_NO_ROW = "{}: it has a header and no row; nothing to read"
_TYPES: dict[ColumnType, type] = {"int": np.int64, "float": np.float64, "str": np.int32}

Check = Callable[[str], Any]
"""Raises ValueError for a text that cannot stand where it stands."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column by its type.

    Attributes:
        kind: Its type.
        values: int64, float64 with NaN for missing ones, or int32: places in `texts`, -1 for None.
        texts: The different texts, in the order in which they come.
    """

    kind: ColumnType
    values: NDArray[Any]
    texts: list[str] = field(default_factory=list)

    def tolist(self) -> list[Any]:
        """The text of each row."""
        texts: list[Any] = np.array([*self.texts, None], object)[self.values].tolist()
        return texts


@dataclass(slots=True)
class CsvTable:
    """The content of a file.

    Attributes:
        count: Number of rows.
        content: Hash of the file.
        keys: The key of each row; None without a column of keys.
        labels: Class ids, int64 [n], or names; None without a column of labels.
        image: The column of the images' paths, or None. If it is no key, it is among `columns`.
        columns: The columns that become fields.
        doubts: What may have been meant otherwise, in words.
    """

    count: int
    content: str
    keys: list[str] | None = None
    labels: NDArray[np.int64] | list[str] | None = None
    image: str | None = None
    columns: dict[str, Column] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)


class CsvReader:
    """Reads a file once, and complains of the first row that is wrong.

    Args:
        path: The file.
        delimiter: What separates values.
        missing: Texts that stand for no value.
        types: Types of columns that are not guessed.
        root: The folder of the images.
        where: The storage, for messages.
    """

    def __init__(
        self,
        path: str,
        *,
        delimiter: str,
        missing: Collection[str],
        types: Mapping[str, ColumnType],
        root: str,
        where: str,
    ) -> None:
        self._path, self._delimiter = path, delimiter
        self._missing, self._types, self._where = frozenset(missing), types, where
        self._root = root
        self._faults: list[tuple[int, str, Check]] = []

    def read(self, **roles: Any) -> CsvTable:
        """Read the file.

        Args:
            roles: See `datasets.columnar.names.find_roles`.

        Raises:
            ValueError: It is no CSV in UTF-8 or has no row; a value of another type, a key or
                label that is missing, a key that stands twice, or an image's path that leads out
                of its folder, with the line.
        """
        first = next(self._rows(), None)
        if first is None:
            raise ValueError(
                f"{self._where}: it is empty; write a first line with the columns' names"
            )
        _, header = first
        found = self._find_roles(header, **roles)
        content, columns = self._parse(header)
        count = len(columns[header[0]])
        if not count:
            raise ValueError(_NO_ROW.format(self._where))
        table = CsvTable(count, content, image=found.image)
        if found.image is not None:
            images = _text_column(columns[found.image].combine_chunks())
            self._check(found.image, images, partial(refuse_escape, root=self._root))
            if found.image != found.key:
                table.columns[found.image] = images
        if found.label is not None:
            texts = columns[found.label].combine_chunks()
            table.labels = self._labels(found.label, texts, table.doubts)
        if found.key is not None:
            table.keys = self._keys(found.key, columns[found.key].combine_chunks())
        for name in found.fields:
            texts = columns.pop(name).combine_chunks()
            table.columns[name] = self._column(name, texts, table.doubts)
        if self._faults:
            self._complain(found)
        return table

    def _find_roles(self, header: Sequence[str], **roles: Any) -> ColumnRoles:
        for name in header:
            if list(header).count(name) > 1:
                raise ValueError(f"{self._where}: line 1: column {name!r} stands twice; rename one")
        found = find_roles(header, where=self._where, **roles)
        for name in self._types:
            if name not in found.places:
                raise ValueError(
                    f"{self._where}: types: no column {name!r}; columns: {', '.join(header)}"
                )
        return replace(found, key=found.key or found.image)

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        return iter_csv(self._path, delimiter=self._delimiter, where=self._where)

    def _parse(self, header: Sequence[str]) -> tuple[str, dict[str, Any]]:
        """Hash of the file, and its columns as texts, null where one is missing."""
        import pyarrow as pa
        import pyarrow.csv

        with open(self._path, "rb") as file:
            data = file.read()
        if not _is_strict(data, self._delimiter):
            for _ in self._rows():  # it may still be right: then nothing is raised
                pass
        try:
            table = pa.csv.read_csv(
                pa.BufferReader(data),
                pa.csv.ReadOptions(block_size=_BLOCK_BYTES),
                pa.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=b'"' in data),
                pa.csv.ConvertOptions(
                    column_types=dict.fromkeys(header, pa.large_string()),
                    null_values=list(self._missing),
                    strings_can_be_null=True,
                ),
            )
        except pa.ArrowInvalid as error:
            if sum(1 for _ in self._rows()) == 1:  # which names the line where one is wrong
                raise ValueError(_NO_ROW.format(self._where)) from None
            raise ValueError(
                f"{self._where}: cannot be read as a CSV in UTF-8 "
                f"({' '.join(str(error).split())[:300]}); save it as such"
            ) from error
        columns = {name: table.column(name) for name in header}
        return hashlib.blake2b(data, digest_size=16).hexdigest(), columns

    def _labels(self, name: str, texts: Any, doubts: list[str]) -> NDArray[np.int64] | list[str]:
        encoded = _text_column(texts)

        def refuse_missing(text: str) -> None:
            self._refuse_missing(text.strip(), what="the label")

        self._check(name, encoded, refuse_missing, null=True)
        column = self._column(name, texts, doubts)
        if column.kind == "int":
            return column.values
        return replace(encoded, texts=[text.strip() for text in encoded.texts]).tolist()

    def _keys(self, name: str, texts: Any) -> list[str]:
        encoded = _text_column(texts)
        self._check(name, encoded, partial(self._refuse_missing, what=repr(name)), null=True)
        if len(encoded.texts) < len(texts):
            _, first = np.unique(encoded.values, return_index=True)
            twice = np.ones(len(texts), np.bool_)
            twice[first] = False
            twice &= encoded.values >= 0
            if twice.any():
                row = int(twice.argmax())
                same = int((encoded.values == encoded.values[row]).argmax())
                self._faults.append((row, name, partial(self._refuse_twice, row=same)))
        return encoded.tolist()

    def _column(self, name: str, texts: Any, doubts: list[str]) -> Column:
        """A column by its type, given or the narrowest that holds every value."""
        kind = self._types.get(name)
        numbers = None if kind == "str" else _plain_numbers(texts)
        if numbers is not None and (kind != "int" or numbers.dtype == np.int64):
            found: ColumnType = kind or ("int" if numbers.dtype == np.int64 else "float")
            return Column(found, numbers.astype(_TYPES[found]))
        encoded = _text_column(texts)
        if kind is None:
            kind = _guess(encoded)
            if kind == "str" and (odd := _odd_text(encoded)) is not None:
                doubts.append(self._doubt(name, *odd))
        if kind == "str":
            return encoded
        check = partial(convert, kind=kind, missing=self._missing)
        if self._check(name, encoded, check, null=kind == "int"):
            return encoded
        values = [convert(text, kind) for text in encoded.texts]
        return Column(kind, np.array([*values, 0 if kind == "int" else np.nan])[encoded.values])

    def _check(self, name: str, column: Column, check: Check, *, null: bool = False) -> bool:
        """Note the first row whose text is refused, or is missing where none may be."""
        rows = [int((column.values < 0).argmax())] if null and (column.values < 0).any() else []
        for place, text in enumerate(column.texts):
            try:
                check(text)
            except ValueError:
                rows.append(int((column.values == place).argmax()))
                break
        self._faults += [(row, name, check) for row in rows]
        return bool(rows)

    def _complain(self, roles: ColumnRoles) -> None:
        row, name, check = min(self._faults, key=lambda fault: fault[0])
        line, values = self._row(row)
        try:
            check(values[roles.places[name]])
        except ValueError as error:
            raise ValueError(f"{self._where}: line {line}: {error}") from None
        raise ValueError(f"{self._where}: it was written anew while it was read; start again")

    def _row(self, row: int) -> tuple[int, list[str]]:
        """Find the line that a row begins in, and its values."""
        return next(islice(self._rows(), row + 1, None))

    def _refuse_missing(self, text: str, *, what: str) -> None:
        if text in self._missing:
            raise ValueError(f"{what} is missing ({text!r}); fill it in, or take the row out")

    def _refuse_twice(self, text: str, *, row: int) -> None:
        where = f"{text!r} stands here and in line {self._row(row)[0]}"
        raise ValueError(f"{where}; name one whose values differ: dataset.storage.key_column")

    def _doubt(self, name: str, row: int, text: str, numbers: int) -> str:
        return (
            f"column {name!r} is taken as text: line {self._row(row)[0]} has {text!r}, and "
            f"{numbers:,} other values are numbers; correct it, or add it to "
            f"dataset.storage.missing, or type dataset.storage.types.{name}=str if it is text"
        )


def _is_strict(data: bytes, delimiter: str) -> bool:
    """Whether every quote opens or ends a value and no line ends in a carriage return alone.

    Of such files all readers understand the same. Quotes come in pairs then: one that opens stands
    at the start of a value or, as half of an escaped one, right behind one that ends.
    """
    if data.count(b"\r") != data.count(b"\r\n"):
        return False
    letters = np.frombuffer(data, np.uint8)[len(_BOM) if data.startswith(_BOM) else 0 :]
    quotes = np.flatnonzero(letters == ord('"'))
    if len(quotes) % 2:
        return False
    between = np.zeros(256, np.bool_)
    between[[ord(delimiter), ord("\r"), ord("\n")]] = True
    first, last = quotes[::2], quotes[1::2]
    opens = (first == 0) | between[letters[first - 1]]
    ends = (last == len(letters) - 1) | between[letters[(last + 1) % len(letters)]]
    escaped = first[1:] == last[:-1] + 1
    opens[1:] |= escaped
    ends[:-1] |= escaped
    return bool(opens.all() and ends.all())


def _text_column(texts: Any) -> Column:
    encoded = texts.dictionary_encode()
    places = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return Column("str", places.astype(np.int32, copy=False), encoded.dictionary.to_pylist())


def _plain_numbers(texts: Any) -> NDArray[Any] | None:
    """Numbers as int64 or float64; None where texts are not all numbers, or some are odd ones.

    What `_guess` finds many times quicker, for nearly all columns of numbers.
    """
    import pyarrow as pa

    try:
        values = texts.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return None
    if np.isinf(values).any() or np.isnan(values).sum() != texts.null_count or _any(texts, _CODE):
        return None
    if texts.null_count or (values % 1).any():
        return np.asarray(values)
    try:
        whole = texts.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:  # 1.0 and 1e5 are floats, +1 is an integer
        return None if _any(texts, r"^\+") else np.asarray(values)
    is_long = (whole >= _LEAST_LONG) | (whole <= -_LEAST_LONG)
    return np.asarray(values if is_long.any() else whole)


def _any(texts: Any, pattern: str) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())


def _guess(column: Column) -> ColumnType:
    """The narrowest type that holds every value.

    Integers with missing ones among them are floats; a number like 007 is text.
    """
    if not all(map(_FLOAT.fullmatch, column.texts)):
        return "str"
    is_integer = all(map(_INTEGER.fullmatch, column.texts)) and (column.values >= 0).all()
    return "int" if is_integer else "float"


def _odd_text(column: Column) -> tuple[int, str, int] | None:
    """The first text, with its row, that is no number where nearly all are, and how many these are.

    A code such as 007 is none of these.
    """
    is_odd = np.array([_FLOAT.fullmatch(text) is None for text in column.texts])
    counts = np.bincount(column.values[column.values >= 0], minlength=len(is_odd))
    numbers = int(counts[~is_odd].sum())
    odd = [text for text, its in zip(column.texts, is_odd.tolist(), strict=True) if its]
    if counts[is_odd].sum() > _ODD_SHARE * numbers or any(map(_is_code, odd)):
        return None
    return int((column.values == is_odd.argmax()).argmax()), odd[0], numbers


def _is_code(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def convert(text: str, kind: ColumnType, missing: Collection[str] = ()) -> Any:
    """Convert a value to its type: a missing one is NaN among floats and None among texts.

    Raises:
        ValueError: It is none of that type.
    """
    if text in missing:
        if kind == "int":
            raise ValueError(f"{text!r} is missing, and int has no value for that; use float")
        return float("nan") if kind == "float" else None
    if kind == "str":
        return text
    try:
        # Python allows 1_0, and whole numbers of any length.
        if "_" in text or (kind == "int" and _DIGITS.fullmatch(text) is None):
            raise ValueError
        return int(text) if kind == "int" else float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no {kind}") from None
