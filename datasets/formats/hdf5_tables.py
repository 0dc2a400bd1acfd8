"""Records of HDF5 files: rows of arrays, or groups of arrays of their own."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.formats.hdf5_arrays import (
    DAMAGE,
    Array,
    ArrayType,
    OpenedFile,
    fixed_columns,
    native,
)
from datasets.formats.hdf5_filters import DamagedChunk
from datasets.formats.hdf5_reader import ArrayReader
from datasets.formats.packed_fields import unpack_fields
from datasets.index import Index

Fields = dict[str, Any]
_BYTES = ("image", "mask")
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Column:
    """A field of the rows of one file.

    Attributes:
        array: Its values.
        holds: What a list of bytes is: ``array``, ``bytes``, ``text``, ``json``, or ``any`` (see
            `datasets.formats.packed_fields`).
        shapes: The shape of every value, integer [N, axes]; None: one axis.
        missing: Whether a row lacks the field, bool [N]; None: none does.
    """

    array: Array
    holds: str
    shapes: Array | None = None
    missing: Array | None = None


class RowTable:
    """Arrays whose rows are the records, in several files one behind the other.

    Args:
        files: Columns by field of each file, in order; labels are in the index.
        counts: Rows of each file.
    """

    def __init__(self, files: list[dict[str, Column]], counts: list[int]) -> None:
        self._files = [{n: c for n, c in each.items() if n != "label"} for each in files]
        self._ends = np.cumsum(np.array(counts, np.int64))
        self._names = tuple({name: None for columns in self._files for name in columns})
        self._fixed = all(
            columns.keys() == self._files[0].keys()
            and all(column.missing is None for column in columns.values())
            for columns in self._files
        ) and all(
            fixed_columns([columns[name].array for columns in self._files]) for name in self._names
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields."""
        return self._names

    @property
    def gives_columns(self) -> bool:
        """Whether every field has values of one shape and type."""
        return self._fixed

    def read(
        self,
        reader: ArrayReader,
        opened: Callable[[int], OpenedFile],
        index: Index,
        rows: NDArray[np.int64],
    ) -> list[Fields | str]:
        """The fields of rows, int64 [n], or why they cannot be had."""
        found: list[Fields | str] = [{} for _ in range(len(rows))]
        for number, places, inside in self._by_file(rows):
            file = opened(number)
            for name, column in self._files[number].items():
                values = _column_values(reader, file, name, column, inside)
                for place, value in zip(places.tolist(), values, strict=True):
                    fields = found[place]
                    if isinstance(fields, str) or value is _MISSING:
                        continue
                    if isinstance(value, DamagedChunk):
                        found[place] = f"{name}: {value}"
                    else:
                        fields[name] = value
        return found

    def take(
        self,
        reader: ArrayReader,
        opened: Callable[[int], OpenedFile],
        rows: NDArray[np.int64],
        fields: Collection[str],
        allocate: Callable[[int], Any] | None,
    ) -> dict[str, NDArray[Any]] | None:
        """Rows, int64 [n], as columns; None where one of them is damaged."""
        names = [name for name in self.names if name in fields]
        arrays = {name: self._files[0][name].array for name in names}
        largest = max(names, key=lambda name: arrays[name].row_bytes, default=None)
        columns = {}
        for name in names:
            shape, dtype = (len(rows), *arrays[name].shape[1:]), arrays[name].type.native
            if allocate is None or name != largest:
                columns[name] = np.empty(shape, dtype)
            else:
                memory = allocate(len(rows) * arrays[name].row_bytes)
                count = len(rows) * arrays[name].row_bytes // dtype.itemsize
                columns[name] = np.frombuffer(memory, dtype, count).reshape(shape)
        for number, places, inside in self._by_file(rows):
            file = opened(number)
            for name, out in columns.items():
                for at, local, block in reader.blocks(
                    file, self._files[number][name].array, inside
                ):
                    if isinstance(block, str):
                        return None
                    if len(at) == len(rows) and block.dtype == out.dtype and block.flags.aligned:
                        # With the default mode NumPy would take into a buffer and copy that.
                        ordered = np.empty_like(local)
                        ordered[at] = local
                        np.take(block, ordered, axis=0, out=out, mode="clip")
                    elif len(at) == 1:
                        out[places[at[0]]] = block[local[0]]
                    else:
                        out[places[at]] = block[local]
        return columns

    def _by_file(
        self, rows: NDArray[np.int64]
    ) -> list[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """For each file that holds some: its number, places in `rows`, and its own rows."""
        numbers = np.searchsorted(self._ends, rows, side="right")
        found = []
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            start = int(self._ends[number - 1]) if number else 0
            found.append((number, places, rows[places] - start))
        return found


class SampleTable:
    """Groups that are the records; where their arrays lie stands in the index.

    The columns of a field: its type (-1: not there), first place, and the axes of its shape and
    of its chunks (0 in the first of these: it lies in one piece).

    Args:
        types: The types, by number.
        axes: Number of axes of each field.
    """

    gives_columns = False

    def __init__(self, types: list[ArrayType], axes: dict[str, int]) -> None:
        self._types = types
        self._axes = axes

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields that records may have."""
        return tuple(self._axes)

    def read(
        self,
        reader: ArrayReader,
        opened: Callable[[int], OpenedFile],
        index: Index,
        rows: NDArray[np.int64],
    ) -> list[Fields | str]:
        """The fields of the records at `rows`, int64 [n], or why they cannot be had."""
        columns = {name: index.values(name, rows).tolist() for name in index.columns if ":" in name}
        files = columns[":file"]
        found: list[Fields | str] = [{} for _ in range(len(rows))]
        for place in np.argsort(rows, kind="stable").tolist():
            row = {name: values[place] for name, values in columns.items()}
            file = opened(files[place])
            fields: Fields = {}
            try:
                for name, axes in self._axes.items():
                    array = self.array(row, name, axes)
                    if array is not None:
                        fields[name] = value_of(reader, file, name, array)
                found[place] = fields
            except DAMAGE as error:
                found[place] = f"{name}: {error}"
        return found

    def array(self, row: dict[str, int], name: str, axes: int) -> Array | None:
        """The array of a field in a row of the index."""
        number = row[f"{name}:type"]
        if number < 0:
            return None
        count = row[f"{name}:axes"]
        shape = tuple(row[f"{name}:length{axis}"] for axis in range(axes))[:count]
        chunks = tuple(row[f"{name}:chunk{axis}"] for axis in range(axes))[:count]
        chunked = bool(count) and row[f"{name}:chunk0"] > 0
        return Array(self._types[number], shape, chunks if chunked else None, row[f"{name}:first"])


def value_of(reader: ArrayReader, file: OpenedFile, name: str, array: Array) -> Any:
    """The value of an array that is a field of one record.

    Raises:
        DamagedChunk: It is damaged.
    """
    whole = reader.whole(file, array)
    if array.type.kind == "number":
        return whole.item() if not whole.ndim else whole
    holds = holds_of(name, array)
    values = [
        _held(value, holds, array, None) for value in reader.values(file, array, whole.reshape(-1))
    ]
    for value in values:
        if isinstance(value, DamagedChunk):
            raise value
    return values if whole.ndim else values[0]


def holds_of(name: str, array: Array) -> str:
    """What lists of a field are, where nothing says it: of images, encoded ones."""
    return "bytes" if name in _BYTES and array.type.native == np.uint8 else "array"


def _column_values(
    reader: ArrayReader, file: OpenedFile, name: str, column: Column, rows: NDArray[np.int64]
) -> list[Any]:
    """Values of a field at rows, [n]; `DamagedChunk` for those that cannot be had."""
    found: list[Any] = [None] * len(rows)
    shapes: list[Any] = [None] * len(rows)
    if column.shapes is not None:
        shapes = _column_values(reader, file, name, Column(column.shapes, "array"), rows)
    missing: list[Any] = [False] * len(rows)
    if column.missing is not None:
        missing = _column_values(reader, file, name, Column(column.missing, "array"), rows)
    for places, inside, block in reader.blocks(file, column.array, rows):
        values: list[Any]
        if isinstance(block, str):
            values = [DamagedChunk(block)] * len(places)
        elif column.array.type.kind == "number":
            if block.ndim == 1:
                values = block[inside].tolist()
            else:
                values = [native(block[row]) for row in inside.tolist()]
        else:
            values = reader.values(file, column.array, block[inside])
        for place, value in zip(places.tolist(), values, strict=True):
            if column.array.type.kind != "number":
                value = _held(value, column.holds, column.array, shapes[place])
            found[place] = _MISSING if missing[place] is True else value
    return found


def _held(value: Any, holds: str, array: Array, shape: Any) -> Any:
    """What an element of text or bytes is."""
    if isinstance(value, DamagedChunk):
        return value
    if isinstance(shape, DamagedChunk):
        return shape
    if array.type.kind == "list" and holds == "array":
        items = native(np.frombuffer(value, array.type.dtype))
        try:
            return items if shape is None else items.reshape(shape)
        except ValueError:
            return DamagedChunk(f"{items.size} values cannot have the shape {shape.tolist()}")
    try:
        if holds == "text" and isinstance(value, bytes):
            return value.decode()
        if holds == "any":
            return unpack_fields(value, 0)["value"]
        return json.loads(value) if holds == "json" else value
    except (ValueError, KeyError, TypeError, IndexError, struct.error):
        return DamagedChunk(f"its {holds} value cannot be read")
