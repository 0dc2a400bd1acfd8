"""A group of rows that is read as a whole: rows as fields, columns as arrays."""

from __future__ import annotations

import threading
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from penstock.core.record_codec import unpack_fields
from penstock.core.sample import TextColumn, too_large
from penstock.datasets.columnar.images import float_of
from penstock.datasets.columnar.record_columns import REST
from penstock.datasets.columnar.schema import Roles, element_type, is_image, is_list, is_text

Row = dict[str, Any] | str  # the fields of a record, or the reason for a bad record

_MOST_TEXTS = 1 << 18  # distinct texts of a column; with more, batches are read row by row


class Group:
    """Rows of a ``pyarrow.Table`` of validated columns; threads share it."""

    def __init__(self, table: Any, roles: Roles, max_bytes: int) -> None:
        self._table, self._roles, self._max_bytes = table, roles, max_bytes
        self._is_small = table.get_total_buffer_size() <= max_bytes
        self._columns: dict[str, Any] = {}
        self._numbers: dict[str, NDArray[Any] | None] = {}

    def read(self, rows: NDArray[np.int64], wanted: Collection[str] | None) -> list[Row]:
        """Return the fields of rows, int64 [n]; `wanted` selects among those within `REST`."""
        numbers: list[int] = rows.tolist()
        found: list[Row] = [{} for _ in numbers]
        if not self._is_small:
            sizes = [self._table.slice(row, 1).nbytes for row in numbers]
            most = self._max_bytes
            found = [too_large(size, most) if size > most else {} for size in sizes]
        for column, name in self._roles.fields.items():
            values = self.column(column)
            if isinstance(values, np.ndarray):
                listed = values[rows].tolist() if values.ndim == 1 else list(values[rows])
                for fields, value in zip(found, listed, strict=True):
                    if isinstance(fields, dict):
                        fields[name] = value
                continue
            if self._roles.packed and values.null_count == len(values):
                continue
            for n, row in enumerate(numbers):
                if isinstance(fields := found[n], dict):
                    try:
                        fields |= self._row(values[row], column, wanted)
                    except ValueError as error:
                        found[n] = f"column {column!r}: {error}"
        return found

    def _row(self, scalar: Any, column: str, wanted: Collection[str] | None) -> dict[str, Any]:
        """Return the fields of one value of a column."""
        name, packed = self._roles.fields[column], self._roles.packed
        if packed and not scalar.is_valid:
            return {}
        value = _value(scalar, column in self._roles.floats)
        if packed and name == REST:
            rest = unpack_fields(value)
            return {n: field for n, field in rest.items() if wanted is None or n in wanted}
        if value is None and name == "image" and column != self._roles.paths:
            raise ValueError("lacks image bytes; write the bytes of the images into the table")
        return {name: value}

    def numbers(self, column: str, texts: Texts | None) -> NDArray[Any] | None:
        """Return a column, or the numbers of its texts, [n]; None if it has neither."""
        if column not in self._numbers:
            values = self.column(column) if texts is None else texts.number(self.column(column))
            self._numbers[column] = values if isinstance(values, np.ndarray) else None
        return self._numbers[column]

    def column(self, column: str) -> Any:
        """Return a column as an array [n, ...] of numbers, or else as a ``pyarrow.Array``."""
        if column not in self._columns:
            chunks = self._table.column(column)
            array = chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()
            if is_image(array.type):
                array = array.flatten()[array.type.get_field_index("bytes")]
            lacks = self._roles.packed and array.null_count
            found = None
            with suppress(pa.ArrowInvalid):  # an integer that a float may round
                found = None if lacks else _numbers(array, column in self._roles.floats)
            self._columns[column] = getattr(array, "storage", array) if found is None else found
        return self._columns[column]


class Texts:
    """The distinct texts of a column over all groups read so far; threads share it."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._array = np.array([None], object)
        self._lock = threading.Lock()

    def number(self, column: Any) -> NDArray[np.int32] | None:
        """Number the texts of a column, int32 [n], -1 for nulls; None if too many differ."""
        encoded = column if types.is_dictionary(column.type) else column.dictionary_encode()
        with self._lock:
            if len(encoded.dictionary) + len(self._numbers) > _MOST_TEXTS:
                return None
            texts = encoded.dictionary.to_pylist()
            numbers = [self._numbers.setdefault(text, len(self._numbers)) for text in texts]
        places = encoded.indices.cast(pa.int32()).fill_null(-1).to_numpy(False)
        return np.array([*numbers, -1], np.int32)[places]

    def column(self, numbers: NDArray[np.int32]) -> TextColumn:
        """Return the texts of `numbers` [n]; the same array of texts until one is added."""
        with self._lock:
            if len(self._array) <= len(self._numbers):
                self._array = np.array([*self._numbers, None], object)
            return TextColumn(self._array, numbers)


def _numbers(array: Any, as_float: bool) -> NDArray[Any] | None:
    """Return numbers, times or fixed-size lists of numbers, [n, ...], or None for other columns."""
    shape = [len(array)]
    tensor = array.type if isinstance(array.type, pa.FixedShapeTensorType) else None
    array = getattr(array, "storage", array)
    if is_text(element_type(array.type)):
        return None
    while types.is_fixed_size_list(array.type):
        shape.append(array.type.list_size)
        if array.null_count:
            nulls = pa.scalar([None] * array.type.list_size, array.type)
            array = pc.if_else(array.is_valid(), array, nulls)
        array = array.flatten()
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if is_time := types.is_temporal(array.type):
        array = array.view(pa.int64() if array.type.bit_width == 64 else pa.int32())
    elif types.is_decimal(array.type):
        array = array.cast(pa.float64())
    is_floating = types.is_floating(array.type)
    if not (is_floating or types.is_integer(array.type) or types.is_boolean(array.type)):
        return None
    if as_float:
        array = array.cast(pa.float64(), safe=not is_time)
    elif array.null_count and not is_floating:
        return None
    values = array.to_numpy(zero_copy_only=False)
    if tensor is None:
        return np.asarray(values).reshape(shape)
    places = tensor.permutation or range(len(tensor.shape))  # the axis in memory of each axis
    values = np.reshape(values, [shape[0], *tensor.shape])
    return np.ascontiguousarray(values.transpose(0, *(place + 1 for place in places)))


def _value(scalar: Any, as_float: bool) -> Any:
    """Return a value, a list of numbers as an array; ValueError for a missing list."""
    if not isinstance(scalar, pa.ListScalar):
        return float_of(scalar.as_py()) if as_float else scalar.as_py()
    kind = element_type(scalar.type)
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        return scalar.as_py()
    if (values := scalar.values) is None:
        raise ValueError(
            "is null, expected a list of numbers; fill it in, or list the other columns in "
            "dataset.storage.columns"
        )
    if (numbers := _numbers(values, as_float)) is not None:
        return np.array(numbers)
    if not is_list(values.type):
        return scalar.as_py()
    parts = [_value(value, as_float) for value in values]
    if not parts:
        return np.zeros((0, 0), np.float64 if as_float else kind.to_pandas_dtype())
    return np.stack(parts) if len({np.shape(part) for part in parts}) == 1 else parts
