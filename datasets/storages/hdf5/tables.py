"""Records of HDF5 files: rows of arrays, or groups of arrays of their own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.datasets.records.index import Index
from penstock.datasets.storages.hdf5.arrays import ArrayReader, OpenFile, OpenFiles, mapped, native
from penstock.datasets.storages.hdf5.layout import Column, held, value_of
from penstock.datasets.storages.hdf5.objects import DAMAGE, Damaged

Fields = dict[str, Any]


class RowTable:
    """Arrays whose rows are the records, in several files one behind the other.

    Args:
        files: Columns by field of each file, in order; labels are in the index.
        counts: Rows of each file.
    """

    def __init__(self, files: Sequence[Mapping[str, Column]], counts: Sequence[int]) -> None:
        self._files = [{n: c for n, c in each.items() if n != "label"} for each in files]
        self._ends = np.cumsum(np.array(counts, np.int64))
        names = tuple({name: None for columns in self._files for name in columns})
        first = self._files[0]
        are_alike = all(
            columns.keys() == first.keys()
            and all(_is_alike(column, first[name]) for name, column in columns.items())
            for columns in self._files
        )
        self.fields = names if are_alike else ()

    def read(
        self, files: OpenFiles, index: Index, indices: NDArray[np.int64]
    ) -> list[Fields | str]:
        """Read the fields of records, int64 [n], or why they cannot be had."""
        rows = index.rows(indices)
        found: list[Fields | str] = [{} for _ in range(len(rows))]
        for number, places, inside in self._by_file(rows):
            for name, column in self._files[number].items():
                try:
                    values = _column_values(files, number, column, inside)
                except DAMAGE as error:
                    values = [Damaged(str(error))] * len(places)
                for place, value in zip(places.tolist(), values, strict=True):
                    fields = found[place]
                    if isinstance(fields, str) or value is _MISSING:
                        continue
                    if isinstance(value, Damaged):
                        found[place] = f"{name}: {value}"
                    else:
                        fields[name] = value
        return found

    def take(
        self,
        files: OpenFiles,
        rows: NDArray[np.int64],
        fields: Collection[str],
        allocate: Callable[[int], Any] | None,
    ) -> dict[str, NDArray[Any]] | None:
        """Read rows, int64 [n], as columns; None where one of them is damaged."""
        arrays = {name: self._files[0][name].array for name in self.fields if name in fields}
        largest = max(arrays, key=lambda name: arrays[name].row_bytes, default=None)
        columns = {}
        for name, array in arrays.items():
            shape = (len(rows), *array.shape[1:])
            memory = None
            if allocate is not None and name == largest:
                memory = memoryview(allocate(len(rows) * array.row_bytes))
            columns[name] = np.ndarray(shape, array.native, memory)
        try:
            for number, places, inside in self._by_file(rows):
                for name, out in columns.items():
                    reader = _reader(files, number, self._files[number][name])
                    _gather(reader, places, inside, out)
        except DAMAGE:
            return None
        return columns

    def _by_file(
        self, rows: NDArray[np.int64]
    ) -> list[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Split rows by file: its number, places in `rows`, and its own rows."""
        numbers = np.searchsorted(self._ends, rows, side="right")
        starts = np.concatenate([[0], self._ends])
        places = [(number, np.flatnonzero(numbers == number)) for number in np.unique(numbers)]
        return [(int(n), where, rows[where] - starts[n]) for n, where in places]


class SampleTable:
    """Groups that are the records; the index says where their fields lie.

    The columns of a field: its type (-1: not there), its offset (-1: the library reads it), and
    the number of axes and the lengths of its shape.

    Args:
        types: Path and dtype of each type.
    """

    fields: tuple[str, ...] = ()

    def __init__(self, types: Sequence[tuple[str, str]]) -> None:
        self._types = [(path, np.dtype(dtype)) for path, dtype in types]

    def read(
        self, files: OpenFiles, index: Index, indices: NDArray[np.int64]
    ) -> list[Fields | str]:
        """Read the fields of records, int64 [n], or why they cannot be had."""
        names = [name.removesuffix(":type") for name in index.columns if name.endswith(":type")]
        columns = {n: index.values(n, indices).tolist() for n in index.columns if ":" in n}
        numbers = index.values("file", indices).tolist()
        keys = index.raw_keys(indices)
        found: list[Fields | str] = [{} for _ in keys]
        for place in np.argsort(indices, kind="stable").tolist():
            row = {name: values[place] for name, values in columns.items()}
            fields: Fields = {}
            name = ""
            try:
                file = files[numbers[place]]
                for name in names:
                    if row[f"{name}:type"] >= 0:
                        fields[name] = self._value(file, keys[place], name, row)
                found[place] = fields
            except DAMAGE as error:
                found[place] = f"{name}: {error}" if name else str(error)
        return found

    def _value(self, file: OpenFile, key: bytes, name: str, row: dict[str, int]) -> Any:
        """Read the value of a field of one record."""
        path, dtype = self._types[row[f"{name}:type"]]
        if row[f"{name}:offset"] < 0:
            return value_of(name, file.reader(f"{key.decode('utf-8', 'surrogateescape')}/{path}"))
        shape = [row[f"{name}:length{axis}"] for axis in range(row[f"{name}:axes"])]
        value = native(mapped(file.shared, row[f"{name}:offset"], dtype, shape))
        return value if shape else value.item()


_MISSING = object()


def _is_alike(column: Column, first: Column) -> bool:
    """Tell whether the rows of two columns can be put into one array."""
    array, other = column.array, first.array
    return (
        column.missing is None
        and array.kind == "number"
        and (array.native, array.shape[1:]) == (other.native, other.shape[1:])
    )


def _reader(files: OpenFiles, number: int, column: Column) -> ArrayReader:
    reader = files.reader(number, column.path)
    if reader.array != column.array:
        raise Damaged("it is not what it was when the index was made")
    return reader


def _gather(
    reader: ArrayReader, places: NDArray[np.int64], rows: NDArray[np.int64], out: NDArray[Any]
) -> None:
    """Put rows at their places in an array."""
    for at, local, block in reader.blocks(rows):
        if isinstance(block, str):
            raise Damaged(block)
        is_all = len(at) == len(out) and np.array_equal(at, places)
        if is_all and block.dtype == out.dtype and block.flags.aligned:
            # With the default mode NumPy would take into a buffer and copy that.
            np.take(block, local, axis=0, out=out, mode="clip")
        else:
            out[places[at]] = block[local]


def _column_values(
    files: OpenFiles, number: int, column: Column, rows: NDArray[np.int64]
) -> list[Any]:
    """Read values of a field at rows, [n]; `Damaged` for those that cannot be had."""
    reader = _reader(files, number, column)
    found = reader.listed(rows) if column.array.is_listed else _fixed_values(reader, rows)
    if column.array.kind != "number":
        shapes: list[Any] = [None] * len(rows)
        if column.shapes is not None:
            shapes = _fixed_values(files.reader(number, column.shapes), rows)
        found = [
            held(value, column.holds, column.array, shape)
            for value, shape in zip(found, shapes, strict=True)
        ]
    if column.missing is not None:
        missing = _fixed_values(files.reader(number, column.missing), rows)
        found = [
            _MISSING if gone is True else value for value, gone in zip(found, missing, strict=True)
        ]
    return found


def _fixed_values(reader: ArrayReader, rows: NDArray[np.int64]) -> list[Any]:
    """Read values of fixed length at rows, [n]."""
    found: list[Any] = [None] * len(rows)
    for places, inside, block in reader.blocks(rows):
        values: list[Any]
        if isinstance(block, str):
            values = [Damaged(block)] * len(places)
        elif reader.array.kind == "bytes":
            values = [value.tobytes() for value in block[inside]]
        elif block.ndim == 1:
            values = block[inside].tolist()
        else:
            values = [native(block[row]) for row in inside.tolist()]
        for place, value in zip(places.tolist(), values, strict=True):
            found[place] = value
    return found
