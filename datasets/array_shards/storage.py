"""Read array files of any format: rows of arrays, or one sample per file."""

from __future__ import annotations

import math
import os
import resource
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from itertools import repeat
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Storage
from penstock.core.sample import BadRecord, Record, RecordError
from penstock.datasets.array_shards.shards import (
    Columns,
    Shard,
    find_shards,
    open_shard,
)
from penstock.datasets.files.data_files import DataFiles, Scan, find_data_files, told_endings
from penstock.datasets.files.group_cache import GroupCache
from penstock.datasets.records.folder_storage import FolderStorage
from penstock.datasets.records.indexed_storage import IndexedStorage
from penstock.datasets.records.labels import (
    FileLabels,
    LabelIds,
    check_images,
    check_labels,
    class_ids,
    class_names,
)
from penstock.datasets.records.table import Table, by_part, constant, numbered

# Memory limit of a process for decompressed arrays and mapped files. An open file counts as a
# share of it, to use only part of the process's descriptors: views also keep files open.
_KEPT_BYTES = 1 << 28
_MOST_FILES = 1024
_PART_OF_DESCRIPTORS = 4
_LARGE_ROW_BYTES = 1 << 14
"""Larger rows are views, because a crop may need only part of them."""


class ArrayForm(ABC):
    """A format of array files, with the name of its storage and the endings of its files."""

    name: ClassVar[str]
    endings: ClassVar[tuple[str, ...]]

    @abstractmethod
    def columns(self, path: str, root: str, where: str, *, checked: bool) -> Columns:
        """Open the arrays of a file, mapped if possible, and verify checksums if `checked`.

        ValueError means that the file is damaged or contains no arrays.
        """

    def sample(self, path: str, root: str, *, checked: bool, max_bytes: int) -> dict[str, Any]:
        """Read the fields of a file with one sample. Raises as `columns`."""
        raise NotImplementedError


class ArrayStorage(IndexedStorage):
    """The rows of array files; reads columns too.

    The key of a record is its value in the field ``key``, or its row number.
    """

    reading_arguments = ("checksums",)
    large_row_bytes: ClassVar[int] = _LARGE_ROW_BYTES
    checks_sizes: ClassVar[bool] = True
    _files: DataFiles
    _fields_of_files: Sequence[str] = ()
    _shards: list[Shard]
    _ends: NDArray[np.int64]
    _common: dict[str, tuple[np.dtype[Any], tuple[int, ...], int]]

    def __init__(
        self,
        form: ArrayForm,
        path: Any,
        *,
        classes: list[str] | None,
        checksums: bool = False,
    ) -> None:
        self.name = form.name
        self.path = path
        self.classes = None if classes is None else tuple(classes)
        self.checksums = checksums
        self._form = form

    @property
    def column_fields(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the names of the fields if all records agree in type and shape, otherwise none."""
        len(self.index)
        return tuple(self._common)

    def shards(self) -> NDArray[np.int64]:
        """Return the first record of each shard."""
        len(self.index)
        return np.unique(np.append(0, self._ends[:-1]))

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read records; records of a damaged shard are bad.

        Large arrays are read-only views, which keep the files open. Small arrays, and arrays of
        many files at a time, are copies.
        """
        rows = self.index.rows(indices)
        found: list[dict[str, Any] | str] = [""] * len(rows)
        groups = list(by_part(self._ends, rows))
        copied = len(groups) > 1 and len(groups) * 4 > _most_files()
        for shard, places, local in groups:
            try:
                fields = self._opened_shard(shard)
            except RecordError as error:
                for place in places.tolist():
                    found[place] = str(error)
                continue
            names = [name for name in fields if name != "key"]
            columns = [self._values(fields[name], local, copied) for name in names]
            records: Any = map(dict, map(zip, repeat(names), zip(*columns, strict=True)))
            if not all(isinstance(array, np.ndarray) for array in fields.values()):
                records = map(_present, records)
            for place, record in zip(places.tolist(), records, strict=True):
                found[place] = record
        rows_of = zip(indices.tolist(), self.index.keys(indices), found, strict=True)
        return [
            BadRecord(i, key, fields) if isinstance(fields, str) else Record(i, key, fields)
            for i, key, fields in rows_of
        ]

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, NDArray[Any]] | None:
        """Read records as columns; see `core.contracts.Storage`. None: a shard is damaged."""
        rows = self.index.rows(indices)
        forms = {name: form for name, form in self._common.items() if name in fields}
        sizes = {name: size for name, (_, _, size) in forms.items()}
        largest = max(sizes, key=sizes.__getitem__, default=None)
        taken: dict[str, NDArray[Any]] = {}
        for name, (dtype, shape, _) in forms.items():
            if allocate is not None and name == largest:
                memory = allocate(sizes[name] * rows.size)
                flat = np.frombuffer(memory, dtype, rows.size * math.prod(shape))
                taken[name] = flat.reshape(rows.size, *shape)
            else:
                taken[name] = np.empty((rows.size, *shape), dtype)
        for shard, places, local in by_part(self._ends, rows):
            try:
                arrays = self._opened_shard(shard)
            except RecordError:
                return None
            for name, out in taken.items():
                if len(places) == len(rows):  # one shard, in order
                    # NumPy's default mode would copy through a buffer.
                    np.take(arrays[name], local, axis=0, out=out, mode="clip")
                elif sizes[name] < _LARGE_ROW_BYTES:
                    out[places] = arrays[name][local]
                else:  # fancy indexing would copy all of them at once
                    for place, row in zip(places.tolist(), local.tolist(), strict=True):
                        out[place] = arrays[name][row]
        return taken

    def mark(self) -> Any:
        """Return the state of the files, and the class names beside them."""
        self._files = self._find()
        return [self._files.recipe, self._class_names()]

    def learn(self, metadata: dict[str, Any]) -> None:
        """Keep the shards, and the types and shapes that they share."""
        self._shards = shards = [Shard(**plain) for plain in metadata["shards"]]
        self._ends = np.cumsum([shard.count for shard in shards])
        all_forms = [{n: f for n, f in shard.forms.items() if n != "key"} for shard in shards]
        forms = all_forms[0]
        agreed = all(each == forms for each in all_forms) and all(
            form and np.dtype(form[0]).kind in "biufc" for form in forms.values()
        )
        self._common = {
            name: (np.dtype(form[0]), tuple(form[1]), _size_bytes(form))
            for name, form in forms.items()
            if agreed and form
        }

    def open(self) -> GroupCache:
        """Return a cache that opens each shard on first use."""
        return GroupCache(_KEPT_BYTES)

    def scan(self) -> Table:
        """Inspect all files; read keys and labels."""
        where = str(self)
        shards = find_shards(
            self._files,
            self._looked_at,
            fields=self._fields_of_files,
            where=where,
        )
        counts = [shard.count for shard in shards]
        sizes = [shard.size_bytes // max(shard.count, 1) for shard in shards]
        columns: dict[str, NDArray[Any]] = {"size_bytes": _repeated(sizes, counts, np.int64)}
        names = None
        if "label" in shards[0].forms:
            labels = np.concatenate([np.asarray(part) for part in self._whole(shards, "label")])
            columns["label"], names = check_labels(labels, self._class_names(), where=where)
        images = [(shard, shard.forms.get("image")) for shard in shards]
        if all(form and np.dtype(form[0]).kind != "S" for _, form in images):
            for shard, form in images:
                assert form is not None
                check_images((shard.count, *form[1]), form[0], where=f"{where}: {shard.name}")
            for axis, name in enumerate(("height", "width")):
                sides = [form[1][axis] for _, form in images if form is not None]
                columns[name] = _repeated(sides, counts, np.int32)
        keys = self._keys(shards) or numbered(sum(counts))
        metadata = {"shards": [asdict(shard) for shard in shards]}
        return Table(keys, columns, names, metadata)

    def _find(self) -> DataFiles:
        return find_data_files(self.path, endings=self._form.endings, where=str(self))

    def _keys(self, shards: list[Shard]) -> Sequence[str | bytes] | None:
        """Read the keys; None: use the row numbers."""
        if "key" not in shards[0].forms:
            return None
        keys: list[str] = []
        for part in self._whole(shards, "key"):
            keys += [str(part[row]) for row in range(len(part))]
        seen: set[str] = set()
        for key in keys:
            if key in seen:
                raise ValueError(f"{self}: the key {key!r} stands twice; give each record its own")
            seen.add(key)
        return keys

    def _whole(self, shards: list[Shard], field: str) -> Iterator[Any]:
        for shard in shards:
            try:
                yield open_shard(shard, self._files, self._loaded)[0][field]
            except RecordError as error:
                raise ValueError(f"{self}: {shard.name}: {error}; write it again") from error

    def _looked_at(self, number: int) -> Columns:
        name = self._files.names[number]
        return self._columns(number, f"{self}: {name}", checked=False)

    def _loaded(self, number: int) -> Columns:
        return self._columns(number, "it", checked=self.checksums)

    def _columns(self, number: int, where: str, *, checked: bool) -> Columns:
        path, root = self._files.paths[number], self._files.root
        return self._form.columns(path, root, where, checked=checked)

    def _opened_shard(self, number: int) -> dict[str, Any]:
        shard, files = self._shards[number], self._files

        def load() -> tuple[Any, int]:
            fields, size_bytes = open_shard(shard, files, self._loaded)
            numbers = sorted({at for at, _ in shard.places.values()})
            paths = [(os.path.join(files.root, files.names[n]), files.marks[n][0]) for n in numbers]
            return (fields, paths), size_bytes + len(paths) * (_KEPT_BYTES // _most_files())

        fields, paths = self.opened.get(number, load)
        for path, size_bytes in paths if self.checks_sizes else ():
            # Do not touch pages past the end of a truncated file.
            try:
                missing = size_bytes - os.stat(path).st_size
            except OSError:
                continue  # a mapped file stays valid after it is removed
            if missing > 0:
                name = os.path.basename(path)
                raise RecordError(f"{name}: the file ends {missing:,} bytes too early")
        opened: dict[str, Any] = fields
        return opened

    def _values(self, array: Any, rows: NDArray[np.int64], copied: bool) -> list[Any]:
        """Return Python numbers and texts, read-only arrays, or RecordErrors."""
        if not isinstance(array, np.ndarray):
            return [_value(array, row) for row in rows.tolist()]
        if array.ndim == 1:
            numbers: list[Any] = array[rows].tolist()
            return numbers
        if copied or array[:1].nbytes < self.large_row_bytes:
            array, rows = array[rows], np.arange(len(rows))
            array.flags.writeable = False
        return [array[row] for row in rows.tolist()]

    def _class_names(self) -> tuple[str, ...] | None:
        return class_names(self._beside(), self.classes, where=str(self))

    def _beside(self) -> str | None:
        """Return the folder of files beside the data, such as class names."""
        return self.path if os.path.isdir(self.path) else os.path.dirname(self.path)


def _repeated(values: Sequence[int], counts: Sequence[int], dtype: Any) -> NDArray[Any]:
    """Repeat the value of each shard for its records."""
    if len(set(values)) == 1:
        return constant(values[0], sum(counts), dtype)
    return np.repeat(values, counts).astype(dtype)


def _size_bytes(form: Sequence[Any]) -> int:
    return int(math.prod(form[1]) * np.dtype(form[0]).itemsize)


def _most_files() -> int:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return _MOST_FILES
    return max(1, min(allowed // _PART_OF_DESCRIPTORS, _MOST_FILES))


def _present(record: dict[str, Any]) -> dict[str, Any] | str:
    """Return the cause if the record cannot be read."""
    bad = next((value for value in record.values() if isinstance(value, RecordError)), None)
    return record if bad is None else str(bad)


def _value(array: Any, row: int) -> Any:
    try:
        return array[row]
    except RecordError as error:
        return error


class SampleFiles(FolderStorage):
    """Array files below a folder, one sample each.

    Labels may come from the files (``labels=file``); otherwise their ``label`` is dropped.
    """

    reading_arguments = ("checksums",)

    def __init__(
        self,
        form: ArrayForm,
        path: str,
        *,
        labels: FileLabels,
        classes: list[str] | None,
        checksums: bool,
    ) -> None:
        self.name, self.path, self.endings = form.name, path, form.endings
        self.classes = None if classes is None else tuple(classes)
        self.rows, self.labels, self.checksums = False, labels, checksums
        self._form = form

    def read_fields(self, path: str) -> dict[str, Any]:
        """Read the fields of a file without its label."""
        return {name: value for name, value in self._all(path).items() if name != "label"}

    def nothing(self, found: Scan) -> str:
        """Return a message with the extensions of the other files."""
        return (
            f"no {' or '.join(self.endings)} file found, among {told_endings(found.others)}; set "
            f"dataset.storage.path"
        )

    def labelled(self, table: Table) -> Table:
        """Add the labels, which may be in the files."""
        if self.labels.source != "file":
            return super().labelled(table)
        ids, names = self._labels_inside(table.raw_keys())
        return table.replaced(columns={**table.arrays, "label": ids}, class_names=names)

    def _all(self, path: str) -> dict[str, Any]:
        most = self.max_record_bytes
        try:
            found = self._form.sample(path, self.path, checked=self.checksums, max_bytes=most)
        except ValueError as error:
            raise RecordError(" ".join(str(error).split())) from error
        return {
            name: value.item() if isinstance(value, np.ndarray) and not value.ndim else value
            for name, value in found.items()
        }

    def _labels_inside(self, keys: Sequence[bytes]) -> LabelIds:
        found = []
        for key in keys:
            name = os.fsdecode(key)
            try:
                label = self._all(os.path.join(self.path, name)).get("label")
            except RecordError as error:
                raise ValueError(f"{self}: {name}: {error}; repair or remove it") from error
            if not isinstance(label, int | str) or isinstance(label, bool):
                raise ValueError(
                    f"{self}: {name}: its label is a {type(label).__name__}, expected a class id "
                    f"or a class name under 'label'; write it so, or set dataset.storage.labels"
                )
            found.append(label)
        if all(isinstance(label, int) for label in found):
            return check_labels(np.array(found), self.classes, where=str(self))
        return class_ids([str(label) for label in found], self.classes, where=str(self))


def open_arrays(
    form: ArrayForm,
    path: str,
    *,
    rows: bool,
    labels: Callable[..., FileLabels],
    classes: list[str] | None,
    checksums: bool,
) -> Storage:
    """Open files of samples along their first axis (`rows`), or of one sample each."""
    path = os.path.abspath(path)
    if rows:
        return ArrayStorage(form, path, classes=classes, checksums=checksums)
    found = labels(folder=path, own=True)
    return SampleFiles(form, path, labels=found, classes=classes, checksums=checksums)
