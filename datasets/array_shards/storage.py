"""Read rows of arrays in files of any format."""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import BadRecord, Record, RecordError
from penstock.datasets.array_shards.shards import (
    Columns,
    Shard,
    ShardKey,
    find_shards,
    named_by_number,
    open_shard,
)
from penstock.datasets.files.data_files import DataFiles, find_data_files
from penstock.datasets.files.group_cache import GroupCache
from penstock.datasets.records.indexed_storage import IndexedStorage
from penstock.datasets.records.labels import (
    check_images,
    check_labels,
    class_names,
    column_ids,
    refuse_twice,
)
from penstock.datasets.records.table import Table, by_part, constant, numbered

# Memory limit of a process for decompressed arrays and mapped files. An open file counts as a
# share of it, to use only part of the process's descriptors.
_KEPT_BYTES = 1 << 28
_MOST_FILES = 64
_LARGE_ROW_BYTES = 1 << 12
"""Larger rows are views, because a crop may need only part of them."""


class ArrayStorage(IndexedStorage):
    """The rows of array files; reads columns too.

    The key of a record is its value in the field ``key``, or its row number.
    """

    endings: ClassVar[tuple[str, ...]] = ()
    index_version = 2
    _files: DataFiles
    _shards: list[Shard]
    _ends: NDArray[np.int64]
    _common: dict[str, tuple[np.dtype[Any], list[int]]]

    def __init__(self, path: str, *, classes: list[str] | None = None) -> None:
        self.path = os.path.abspath(path)
        self.classes = None if classes is None else tuple(classes)

    @abstractmethod
    def columns(self, path: str, root: str) -> Columns:
        """Open the arrays of a file, mapped if possible.

        Other columns have `dtype`, `shape` and the rows of a slice or of int64 [n]; values of any
        length have the type object, and `sizes`. ValueError means that the file is damaged or
        contains no arrays.
        """

    def named(self, name: str) -> tuple[ShardKey, str]:
        return named_by_number(name)

    @property
    def data_path(self) -> str:
        """Return the path of the files."""
        return self.path

    @property
    def column_fields(self) -> tuple[str, ...]:  # type: ignore[override]
        len(self.index)
        return tuple(self._common)

    def shards(self) -> NDArray[np.int64]:
        len(self.index)
        return np.unique(np.append(0, self._ends[:-1]))

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read records; damaged rows are bad.

        Large arrays of one shard are read-only views, which keep the files open; others are copies.
        """
        rows = self.index.rows(indices)
        found: list[dict[str, Any] | str] = [""] * len(rows)
        for shard, places, local in by_part(self._ends, rows):
            records = self._read(shard, local, len(local) < len(rows))
            for place, record in zip(places.tolist(), records, strict=True):
                found[place] = record
        return self.records(indices, found)

    def _read(self, shard: int, rows: NDArray[np.int64], copied: bool) -> list[Any]:
        """Read the fields of rows of a shard, one by one if some are damaged."""
        try:
            fields = self._opened_shard(shard)
            columns = [_values(column, rows, copied) for column in fields.values()]
            found = [dict(zip(fields, row, strict=True)) for row in zip(*columns, strict=True)]
            return found or [{} for _ in rows]
        except RecordError as error:
            if len(rows) == 1:
                return [str(error)]
            return [self._read(shard, rows[n : n + 1], copied)[0] for n in range(len(rows))]

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, NDArray[Any]] | None:
        rows = self.index.rows(indices)
        forms = {name: form for name, form in self._common.items() if name in fields}
        taken = {name: np.empty((rows.size, *shape), kind) for name, (kind, shape) in forms.items()}
        if allocate is not None and taken:
            largest = max(taken, key=lambda name: taken[name].nbytes)
            old = taken[largest]
            taken[largest] = np.ndarray(old.shape, old.dtype, memoryview(allocate(old.nbytes)))
        try:
            for shard, places, local in by_part(self._ends, rows):
                arrays = self._opened_shard(shard)
                for name, out in taken.items():
                    if isinstance(arrays[name], np.ndarray) and len(places) == len(rows):
                        # One shard, in order. NumPy's default mode would copy through a buffer.
                        arrays[name].take(local, axis=0, out=out, mode="clip")
                    else:
                        out[places] = arrays[name][local]
        except RecordError:
            return None
        return taken

    def mark(self) -> Any:
        self._files = find_data_files(self.data_path, endings=self.endings, where=str(self))
        return [self._files.recipe, self._class_names()]

    def learn(self, metadata: dict[str, Any]) -> None:
        self._shards = shards = [Shard(**plain) for plain in metadata["shards"]]
        self._ends = np.cumsum([shard.count for shard in shards])
        all_forms = [{n: f for n, f in shard.forms.items() if n != "key"} for shard in shards]
        common = {n: (np.dtype(kind), shape) for n, (kind, shape) in all_forms[0].items()}
        agreed = all(forms == all_forms[0] for forms in all_forms)
        is_number = all(dtype.kind in "biufc" for dtype, _ in common.values())
        self._common = common if agreed and is_number else {}

    def open(self) -> GroupCache:
        return GroupCache(_KEPT_BYTES)

    def scan(self) -> Table:
        where, names = str(self), None
        shards = find_shards(self._files, self._columns, self.named, where=where)
        counts = [shard.count for shard in shards]
        sizes = _repeated([shard.row_bytes for shard in shards], counts, np.int64)
        if any(form[0] == "|O" for shard in shards for form in shard.forms.values()):
            sizes = sizes + np.concatenate(list(map(self._lengths, shards)))
        columns: dict[str, NDArray[Any]] = {"size_bytes": sizes}
        if "label" in shards[0].forms:
            labels = np.concatenate([self._scanned(shard)["label"][:] for shard in shards])
            names = self._class_names()
            if labels.dtype.kind in "OU":
                texts = [str(text) for shard in shards for text in self._listed(shard, "label")]
                columns["label"], names = column_ids(texts, classes=names, where=where)
            else:
                columns["label"], names = check_labels(labels, names, where=where)
        if shards[0].forms.get("image", ["|O"])[0] != "|O":  # else image files
            for shard in shards:
                dtype, shape = shard.forms["image"]
                check_images((shard.count, *shape), dtype, where=self._where(shard))
        keys = self._keys(shards) or numbered(sum(counts))
        return Table(keys, columns, names, {"shards": [asdict(shard) for shard in shards]})

    def _keys(self, shards: list[Shard]) -> Sequence[bytes] | None:
        """Read the keys; None: use the row numbers."""
        if "key" not in shards[0].forms:
            return None
        found = [key for shard in shards for key in self._listed(shard, "key")]
        keys = [k if isinstance(k, bytes) else os.fsencode(str(k)) for k in found]
        refuse_twice(keys, where=str(self), remedy="give each record its own")
        return keys

    def _lengths(self, shard: Shard) -> NDArray[np.int64]:
        """Return the bytes of the values of any length in each row, int64 [n]."""
        fields, lengths = self._scanned(shard), np.zeros(shard.count, np.int64)
        for name, form in shard.forms.items():
            if form[0] == "|O":
                lengths += fields[name].sizes()
        return lengths

    def _scanned(self, shard: Shard) -> dict[str, Any]:
        try:
            return open_shard(shard, self._files, self._columns)[0]
        except RecordError as error:
            raise ValueError(f"{self._where(shard)}: {error}; write it again") from error

    def _where(self, shard: Shard) -> str:
        return f"{self}: {shard.name}" if shard.name else str(self)

    def _listed(self, shard: Shard, field: str) -> list[Any]:
        try:
            return listed(self._scanned(shard)[field][:])
        except RecordError as error:
            raise ValueError(f"{self._where(shard)}: {field} {error}; write it again") from error

    def _columns(self, number: int) -> Columns:
        return self.columns(self._files.paths[number], self._files.root)

    def _opened_shard(self, number: int) -> dict[str, Any]:
        shard, files = self._shards[number], self._files

        def load() -> tuple[Any, int]:
            fields, size_bytes = open_shard(shard, files, self._columns)
            fields.pop("key", None)  # the index has it
            numbers = sorted({at for name, (at, _) in shard.places.items() if name != "key"})
            return (fields, numbers), size_bytes + len(numbers) * (_KEPT_BYTES // _MOST_FILES)

        fields, numbers = self.opened.get(number, load)
        for at in numbers:
            try:
                files.refuse_changed(at)
            except RecordError as error:
                raise RecordError(f"{files.names[at]}: {error}") from error
        opened: dict[str, Any] = fields
        return opened

    def _class_names(self) -> tuple[str, ...] | None:
        path = self.data_path
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        return class_names(folder, self.classes, where=str(self))


def listed(values: NDArray[Any]) -> list[Any]:
    """Return numbers and texts. RecordError: a text has a character beyond those of Unicode."""
    try:
        found: list[Any] = values.tolist()
    except SystemError:
        raise RecordError("has a text with characters that do not exist") from None
    return found


def _values(column: Any, rows: NDArray[np.int64], copied: bool) -> list[Any]:
    """Return numbers and texts, or read-only arrays."""
    if len(column.shape) == 1:
        return listed(column[rows])
    row_bytes = math.prod(column.shape[1:]) * column.dtype.itemsize
    if copied or row_bytes < _LARGE_ROW_BYTES or not isinstance(column, np.ndarray):
        column, rows = column[rows], np.arange(len(rows))
        column.flags.writeable = False
    return [column[row] for row in rows.tolist()]


def _repeated(values: Sequence[int], counts: Sequence[int], dtype: Any) -> NDArray[Any]:
    """Repeat the value of each shard for its records."""
    if len(set(values)) == 1:
        return constant(values[0], sum(counts), dtype)
    return np.repeat(values, counts).astype(dtype)
