"""A group of rows that is read as a whole: rows as fields, columns as arrays."""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from penstock.core.sample import RecordError, TextColumn, too_large
from penstock.datasets.columnar.record_columns import restore, restore_rest
from penstock.datasets.columnar.schema import Roles, element_type, is_list, is_text

Row = dict[str, Any] | str
"""The fields of a record, or the reason for a bad record."""

_MOST_TEXTS = 1 << 18
"""Distinct texts of a column; beyond that, a batch looks up its own."""


class Group:
    """Rows in memory, or mapped; threads share it.

    Args:
        table: A ``pyarrow.Table`` of validated columns.
        max_bytes: Maximum bytes of a record.
    """

    def __init__(self, table: Any, roles: Roles, max_bytes: int) -> None:
        self._table, self._roles, self._max_bytes = table, roles, max_bytes
        self._is_small = table.get_total_buffer_size() <= max_bytes
        self._readers: dict[str, Any] = {}
        self._columns: dict[str, Any] = {}

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def read(self, rows: NDArray[np.int64], wanted: Collection[str] | None) -> list[Row]:
        """Return the fields of rows, int64 [n], or the reason why a row is bad.

        `wanted` selects among the fields without a column of their own; None: all.
        """
        numbers: list[int] = rows.tolist()
        found: list[dict[str, Any]] = [{} for _ in numbers]
        bad: dict[int, str] = {}
        if not self._is_small:
            sizes = [self._table.slice(row, 1).nbytes for row in numbers]
            most = self._max_bytes
            bad = {n: too_large(size, most) for n, size in enumerate(sizes) if size > most}
        for column, name in self._roles.fields.items():
            kind: Any = self._roles.kinds.get(column)
            reader = self._reader(column)
            if isinstance(reader, np.ndarray | _Coded):
                for fields, value in zip(found, reader[rows].tolist(), strict=True):
                    fields[name] = value
                continue
            array, value_of = reader
            for n, row in enumerate(numbers):
                if n in bad or (kind is not None and not array[row].is_valid):
                    continue  # in a packed table, a null means that the record lacks the field
                try:
                    value = value_of(row)
                    if kind == "rest":
                        found[n].update(restore_rest(value, wanted))
                    else:
                        found[n][name] = value if kind is None else restore(value, kind)
                except ValueError as error:
                    bad[n] = f"column {column!r}: {error}"
        return [bad.get(n, fields) for n, fields in enumerate(found)] if bad else [*found]

    def column(self, column: str, rows: NDArray[np.int64], texts: Texts) -> Any:
        """Return values of a column: numbers [n], places in `texts` [n], or a list of texts.

        Raises:
            RecordError: The column has a null, but had none when it was scanned.
        """
        values = self._columns.get(column)
        if values is None:
            array = self._array(column)
            if is_text(element_type(array.type)):
                codes = texts.number(array)
                values = array if codes is None else codes
            elif not isinstance(values := self._reader(column), np.ndarray):
                raise RecordError(f"column {column!r} has a null, and had none before")
            self._columns[column] = values
        if isinstance(values, np.ndarray):
            return values[rows]
        return values.take(pa.array(rows)).to_pylist()

    def _array(self, column: str) -> Any:
        chunks = self._table.column(column)
        return chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()

    def _reader(self, column: str) -> Any:
        """Return a column [n], or its array and a function that reads a row."""
        reader = self._readers.get(column)
        if reader is None:
            array, as_float = self._array(column), column in self._roles.floats
            if column not in self._roles.kinds or not array.null_count:
                reader = _numbers(array, as_float=as_float)
            if (
                reader is None
                and types.is_dictionary(array.type)
                and is_text(array.type.value_type)
            ):
                reader = _Coded(array)
            if reader is None:
                reader = array, _row_reader(array, column in self._roles.images, as_float)
            self._readers[column] = reader
        return reader


class _Coded:
    """A column stored as a dictionary of texts."""

    def __init__(self, array: Any) -> None:
        self._texts = np.array([*array.dictionary.to_pylist(), None], object)
        self._codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.object_]:
        return self._texts[self._codes[rows]]


class Texts:
    """The distinct texts of a column over all groups read so far; threads share it."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._lock = threading.Lock()
        self._array: NDArray[np.object_] | None = None

    def number(self, column: Any) -> NDArray[np.int32] | None:
        """Number the texts of a column, -1 for nulls; None if too many differ."""
        encoded = column if types.is_dictionary(column.type) else column.dictionary_encode()
        with self._lock:
            if len(encoded.dictionary) + len(self._known) > _MOST_TEXTS:
                return None
            texts = encoded.dictionary.to_pylist()
            places = [self._known.setdefault(text, len(self._known)) for text in texts]
        own = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return np.array([*places, -1], np.int32)[own]

    def column(self, parts: Sequence[tuple[NDArray[np.int64], Any]], size: int) -> TextColumn:
        """Join places in the texts, or lists of texts, to a column of `size` records."""
        if all(isinstance(found, np.ndarray) for _, found in parts):
            places = np.empty(size, np.int32)
            for where, found in parts:
                places[where] = found
            return TextColumn(self.array(), places)
        texts = np.empty(size, object)
        for where, found in parts:
            texts[where] = self.array()[found] if isinstance(found, np.ndarray) else found
        own = {text: n for n, text in enumerate(sorted({*texts.tolist()} - {None}))}
        places = np.array([own.get(text, -1) for text in texts.tolist()], np.int32)
        return TextColumn(np.array([*own, None], object), places)

    def array(self) -> NDArray[np.object_]:
        """Return all texts and None; the same array until texts are added."""
        with self._lock:
            if self._array is None or len(self._array) <= len(self._known):
                self._array = np.array([*self._known, None], object)
            return self._array


def _numbers(array: Any, *, as_float: bool) -> NDArray[Any] | None:
    """Return a column of numbers [n] with NaN for nulls; None for other columns."""
    kind = array.type
    if types.is_temporal(kind):
        # Times become numbers in the column's unit, which collates convert to tensors.
        array = array.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    elif types.is_decimal(kind):
        array = array.cast(pa.float64())
    kind = array.type
    if not (types.is_integer(kind) or types.is_boolean(kind) or types.is_floating(kind)):
        return None
    if as_float:
        array = array.cast(pa.float64(), safe=False)
    elif array.null_count and not types.is_floating(kind):
        return None
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _row_reader(array: Any, is_image: bool, as_float: bool) -> Callable[[int], Any]:
    """Return the function that reads a row of `array`; it raises ValueError for a bad value."""
    if isinstance(array.type, pa.FixedShapeTensorType):
        shape, storage = array.type.shape, array.storage
        return lambda row: _list_value(storage[row], as_float).reshape(shape)
    array = getattr(array, "storage", array)
    if is_image:
        encoded = array.flatten()[array.type.get_field_index("bytes")]
        return lambda row: _image_bytes(encoded[row].as_py())
    if is_list(array.type):
        return lambda row: _list_value(array[row], as_float)
    if as_float or types.is_floating(element_type(array.type)):
        return lambda row: _float_value(array[row].as_py())
    return lambda row: array[row].as_py()


def _float_value(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _image_bytes(value: bytes | None) -> bytes:
    if value is None:
        raise ValueError(
            "lacks image bytes, at most has the path of a file elsewhere; write the images' bytes"
        )
    return value


def _list_value(scalar: Any, as_float: bool) -> Any:
    """Return a list of numbers as an array with an axis for each level; other lists unchanged."""
    if not _is_number(element_type(scalar.type)):
        return scalar.as_py()
    values = scalar.values
    if values is None:
        return _all_missing(scalar.type, as_float)
    kind, shape = values.type, [len(values)]
    while types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        values = _without_null_lists(values)
        values, kind = values.flatten(), kind.value_type
    if is_list(kind):
        parts = [_list_value(value, as_float) for value in values]
        if len({part.shape for part in parts}) > 1:
            return parts if len(shape) == 1 else scalar.as_py()
        if parts:
            return np.stack(parts).reshape(*shape, *parts[0].shape)
        return np.zeros((*shape, 0), _number_type(kind, as_float))
    if types.is_dictionary(kind):
        values = values.dictionary_decode()
    if as_float:
        values = values.cast(pa.float64(), safe=False)
    return np.array(values.to_numpy(zero_copy_only=False)).reshape(shape)


def _without_null_lists(values: Any) -> Any:
    """Replace the null lists of a fixed-size list array by lists of nulls."""
    if not values.null_count:
        return values
    nulls = pa.array([[None] * values.type.list_size], values.type)
    places = np.where(values.is_null().to_numpy(zero_copy_only=False), len(values),
                      np.arange(len(values)))  # fmt: skip
    return pa.concat_arrays([values, nulls]).take(pa.array(places))


def _all_missing(kind: Any, as_float: bool) -> NDArray[Any]:
    """Return the array of a null list of fixed size: NaN everywhere."""
    shape = []
    while types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    if is_list(kind):
        raise ValueError(
            "is null, expected a list of numbers; fill it in, or list the other columns in "
            "dataset.storage.columns"
        )
    return np.full(shape, np.nan, _number_type(kind, as_float))


def _is_number(kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _number_type(kind: Any, as_float: bool) -> np.dtype[Any]:
    return np.dtype(np.float64 if as_float else element_type(kind).to_pandas_dtype())


@contextlib.contextmanager
def damage() -> Iterator[None]:
    """Raise the library's errors about data as `RecordError`.

    For damage the library may raise OSError too, then without an error number.
    """
    try:
        yield
    except RecordError:
        raise
    except OSError as error:
        if error.errno is not None:
            raise
        raise RecordError(_one_line(error)) from error
    except pa.ArrowMemoryError as error:
        # A size of terabytes comes from a damaged number.
        if re.search("malloc of size ([0-9]{13,})", str(error)) is None:
            raise
        raise RecordError(_one_line(error)) from error
    except (pa.ArrowException, ValueError, KeyError, IndexError, OverflowError) as error:
        raise RecordError(_one_line(error)) from error


def _one_line(error: Exception) -> str:
    return f"cannot be read ({' '.join(str(error).split())[:300]})"
