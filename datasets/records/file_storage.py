"""Read formats whose records are byte ranges of files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import BadRecord, Record, RecordError
from penstock.datasets.files.access import (
    MissingFile,
    OpenFiles,
    RangeFile,
    Run,
    absolute_path,
    find_runs,
    read_each,
)
from penstock.datasets.files.data_files import DataFiles, find_data_files
from penstock.datasets.records.indexed_storage import IndexedStorage
from penstock.datasets.records.labels import (
    MISSING,
    FileLabels,
    column_ids,
    find_twice,
    refuse_twice,
)
from penstock.datasets.records.table import NO_LABEL, Table, numbered, tables_of
from penstock.datasets.records.unpacked import CompressedFile, UnpackedShards

_SCANS = 8
"""Number of files scanned at a time; disks answer small header reads faster in parallel."""


class Form(ABC):
    """A file format whose records are byte ranges; its attributes are its options.

    Attributes:
        name: Name of the storage.
        endings: Endings of the files.
        row: Columns whose values `decode` receives.
        reading: Attributes that change how records are read, but not the result of `scan`.
        limited: Column that ``max_record_bytes`` limits.
        declares_classes: A file names its classes in the order of their ids.
        twice: Remedy for a duplicate key, for messages.
        unlabelled: Remedy for a record without a label, for messages.
        missing: Texts that mean a missing label.
    """

    name: ClassVar[str]
    endings: ClassVar[tuple[str, ...]]
    row: ClassVar[tuple[str, ...]] = ()
    reading: ClassVar[tuple[str, ...]] = ()
    limited: ClassVar[str] = "size_bytes"
    declares_classes: ClassVar[bool] = False
    twice: ClassVar[str] = "write the files anew without it"
    unlabelled: ClassVar[str] = "label them"
    missing: Sequence[str] = MISSING

    def __repr__(self) -> str:
        options = {k: v for k, v in vars(self).items() if k[0] != "_" and k not in self.reading}
        return f"{type(self).__name__} {options}"

    @abstractmethod
    def scan(self, file: RangeFile, file_bytes: int, name: str, max_bytes: int) -> Table:
        """Index the records of one file; RecordError if it is damaged or has another format.

        CompressedFile means that the file must be decompressed before it is scanned.
        """

    def decode(self, data: memoryview, key: bytes, row: tuple[Any, ...]) -> dict[str, Any]:
        """Decode a record, or raise RecordError; `row` has its values of the columns `self.row`."""
        raise NotImplementedError(f"{type(self).__name__}.decode")

    def class_names(self, root: str, *, where: str) -> tuple[str, ...] | None:
        """Read the names of numbered classes beside the files; return None without any."""
        return None

    def order(self, tables: Sequence[Table], keys: Sequence[bytes]) -> NDArray[np.int64] | None:
        """Return the order of the records of all files, or None to keep theirs."""
        return None

    def nothing(self, tables: Sequence[Table]) -> str:
        """Return the message for files without records."""
        return "no record in there; set dataset.storage.path"


class FileStorage(IndexedStorage):
    """The records of files of one format, on a disk or behind a URL.

    After a change, only new and changed files are scanned again. Nearby ranges are read together.
    `path` is a file, a folder, a pattern such as ``train-{000..099}.tar``, or a list of these.
    """

    reads_urls = True
    _files: DataFiles
    _names: tuple[str, ...] | None
    _compressed: list[str]
    _former: Table | None = None

    def __init__(
        self,
        form: Form,
        path: str | Sequence[str],
        *,
        labels: FileLabels | None = None,
        classes: Sequence[str] | None = None,
    ) -> None:
        paths = [path] if isinstance(path, str) else path
        if not paths:
            raise ValueError(f"{form.name}: path is an empty list; set dataset.storage.path")
        self.name = form.name
        self.form = form
        self.paths = tuple(map(absolute_path, paths))
        self.path = self.paths[0] + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
        self.labels = labels
        self.classes = None if classes is None else tuple(classes)

    def mark(self) -> Any:
        """Return the state of the files and labels, and the class names beside the files."""
        self._files = self._find_files()
        self._names = self.form.class_names(self._files.root, where=str(self))
        version = None if self.labels is None else self.labels.csv_version()
        return [self._files.recipe, version, self._names]

    def _find_files(self) -> DataFiles:
        return find_data_files(self.paths, endings=self.form.endings, where=str(self))

    def is_current(self, index: Table, mark: Any) -> bool:
        """Return whether nothing has changed; keep an older index so `scan` can reuse it."""
        current = super().is_current(index, mark)
        self._former = None if current else index
        return current

    def learn(self, metadata: dict[str, Any]) -> None:
        """Remember the compressed files."""
        files = zip(self._files.names, metadata["files"], strict=True)
        self._compressed = [name for name, meta in files if meta["compressed"]]
        self._former = None

    def open(self) -> OpenFiles:
        """Return a mapping that opens each file on first use."""
        return OpenFiles(UnpackedShards(self._files, self._compressed))

    @property
    def is_remote(self) -> bool:  # type: ignore[override]
        """Return whether records are read from a URL, and not all from unpacked copies."""
        if not (remote := super().is_remote):
            return remote
        return len(self.index) > 0 and len(self._compressed) < len(self._files.names)

    def shards(self) -> NDArray[np.int64]:
        """Return the first record of each file."""
        return np.flatnonzero(np.diff(self.index.column("file"), prepend=-1))

    def record_bytes(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Return the bytes that reading each record takes, integer [n]."""
        return self.index.values(self.form.limited, indices)

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read records, nearby ones together; return a `BadRecord` for a damaged one."""
        index, decode, names = self.index, self.form.decode, self._files.names
        labelled = "label" in index.columns
        keys = index.raw_keys(indices)
        columns = [
            index.values(name, indices) for name in ("file", "offset", "span_bytes", *self.form.row)
        ]
        rows: list[tuple[Any, ...]] = [()] * len(keys)
        if self.form.row:
            rows = list(zip(*(column.tolist() for column in columns[3:]), strict=True))
        found: list[dict[str, Any] | str] = [""] * len(keys)

        def read(run: Run) -> None:  # one at a time, to reuse the memory of the last run
            view, gone = memoryview(b""), None
            try:
                file: RangeFile = self.opened[names[run.file]]
                view = memoryview(file.read_upto(run.offset, run.size_bytes))
            except MissingFile as error:
                gone = error
            for n, start, stop in run.parts:
                try:
                    if gone is not None:
                        raise gone
                    if len(view) < stop:
                        raise RecordError(
                            f"the file ends {stop - len(view):,} bytes too early; copy it again"
                        )
                    fields = decode(view[start:stop], keys[n], rows[n])
                    if not labelled and "label" in fields:
                        raise RecordError("it has a label, and the first record had none")
                    found[n] = fields
                except RecordError as error:
                    found[n] = f"{names[run.file]}: {error}"

        for _ in read_each(read, list(find_runs(*columns[:3])), place=self._files.root):
            pass
        return self.records(indices, found, keys)

    def scan(self) -> Table:
        """Join the tables of all files."""
        files, tables = self._files, self._tables()
        filled = [table for table in tables if len(table)]
        if not filled:
            raise ValueError(f"{self}: {self.form.nothing(tables)}")
        keys = [key for table in tables for key in table.raw_keys()]
        columns = {
            name: _narrowed(np.concatenate([table.column(name) for table in filled]))
            for name in filled[0].columns
            if name != "label"
        }
        counts = [len(table) for table in tables]
        columns["file"] = np.repeat(np.arange(len(tables), dtype=np.int32), counts)
        order = self.form.order(filled, keys)
        class_names = self._label(filled, keys, columns)
        if order is not None:
            keys = [keys[n] for n in order.tolist()]
            columns = {name: values[order] for name, values in columns.items()}
        if rows := find_twice(keys):
            a, b = (files.names[columns["file"][row]] for row in rows)
            key = keys[rows[0]].decode("utf-8", "backslashreplace")
            raise ValueError(
                f"{self}: {key!r:.100} stands twice, in {a} and {b}; {self.form.twice}"
            )
        metadata = {"files": [table.metadata for table in tables]}
        return self._labelled(Table(keys, columns, class_names, metadata), tables)

    def _in_order(
        self,
        tables: Sequence[Table],
        pattern: str,
        where: str,
        *,
        content: str,
        metadata: dict[str, Any],
    ) -> Table:
        """Join tables in order; `pattern` makes the keys of numbered records."""
        filled = [table for table in tables if len(table)]
        if not filled:
            raise ValueError(f"{self}: no row in {len(tables)} files; nothing to read")
        filled = self._with_names(filled)
        columns = {
            name: np.concatenate([table.column(name) for table in filled])
            for name in filled[0].columns
            if name != "label"
        }
        keys: Any = numbered(sum(map(len, filled)), pattern)
        if filled[0].metadata["keyed"]:
            keys = [key for table in filled for key in table.raw_keys()]
            refuse_twice(keys, where=where)
        class_names = self._label(filled, keys, columns)
        if any(table.metadata["label"] == "number" for table in filled):  # for `tables_of`
            numbers = np.concatenate([table.column("label") for table in filled])
            columns.setdefault("number", numbers)
        metadata = {"files": [table.metadata for table in tables], **metadata}
        return Table(keys, columns, class_names, metadata, content=content)

    def _with_names(self, tables: list[Table]) -> list[Table]:
        """Apply declared class names to files with numbers that declare none."""
        lists = list(dict.fromkeys(t.class_names for t in tables if self._declares(t)))
        for table in tables if len(lists) > 1 else ():
            labels, names = table.column("label"), table.class_names or lists[0]
            if self._declares(table) and not 0 <= labels.min() <= labels.max() < len(names or ()):
                raise ValueError(
                    f"{self}: labels from {labels.min()} to {labels.max()}, expected 0 to "
                    f"{len(names or ()) - 1}: a file names {len(names or ())} classes"
                )
        return [
            table.replaced(
                class_names=lists[0], metadata={**table.metadata, "declares_classes": True}
            )
            if lists and table.class_names is None and "label" in table.columns
            else table
            for table in tables
        ]

    def _tables(self) -> list[Table]:
        """Scan the new files and reuse the tables of the others."""
        files = self._files
        known = {} if self._former is None else tables_of(self._former)

        def scanned(name: str, mark: tuple[int, int | str]) -> Table:
            try:
                return known.get((name, *mark)) or self._scanned(name, mark[0])
            except RecordError as error:
                raise ValueError(f"{self}: {name}: {error}") from error

        with ThreadPoolExecutor(_SCANS) as pool:
            return list(pool.map(scanned, files.names, files.marks))

    def _scanned(self, name: str, size_bytes: int) -> Table:
        compressed, at_most = False, self.max_record_bytes
        try:
            table = self.form.scan(self._files.open(name), size_bytes, name, at_most)
        except CompressedFile:
            compressed = True
            file, size_bytes = UnpackedShards(self._files, [name]).unpacked(name)
            table = self.form.scan(file, size_bytes, name, at_most)
        label = None
        if "label" in table.columns:
            label = "number" if table.class_names is None else "label"
        columns = table.arrays
        if "span_bytes" in columns:
            columns = {"size_bytes": columns["span_bytes"], **columns}
        metadata = {
            **table.metadata,
            "count": len(table),
            "compressed": compressed,
            "label": label,
            "classes": table.class_names if self._declares(table) else None,
        }
        return table.replaced(columns=columns, metadata=metadata)

    def _label(
        self, tables: Sequence[Table], keys: Any, columns: dict[str, NDArray[Any]]
    ) -> tuple[str, ...] | None:
        """Add class ids of the form's own labels to `columns` and return the class names."""
        if not any("label" in table.columns for table in tables):
            return None
        parts = [
            t.column("label") if "label" in t.columns else np.full(len(t), NO_LABEL) for t in tables
        ]
        numbers = np.concatenate(parts).astype(np.int64)
        if len(missing := np.flatnonzero(numbers == NO_LABEL)):
            first = keys[int(missing[0])]
            key = first.decode("utf-8", "backslashreplace") if isinstance(first, bytes) else first
            raise ValueError(
                f"{self}: {len(missing):,} of {len(keys):,} samples lack a label, such as "
                f"{key!r:.100}; {self.form.unlabelled}"
            )
        declared = {table.class_names for table in tables}
        names, classes = self._names, self.classes
        values: NDArray[np.int64] | list[str] = numbers
        if None in declared:
            columns["number"] = numbers
        if len(declared) == 1 and self._declares(tables[0]):
            names = declared.pop()
        elif declared != {None}:
            texts = [
                np.array(table.class_names, object)[part] if table.class_names else part.astype(str)
                for table, part in zip(tables, parts, strict=True)
            ]
            values = [str(text) for part in texts for text in part.tolist()]
            names, classes = None, classes or names
        columns["label"], found = column_ids(
            values,
            names=names,
            classes=classes,
            missing=self.form.missing,
            where=f"{self}: labels",
        )
        return found

    def _declares(self, table: Table) -> bool:
        return bool(table.metadata.get("declares_classes", self.form.declares_classes))

    def _labelled(self, table: Table, tables: Sequence[Table]) -> Table:
        """Add labels from label files."""
        return table


def _narrowed(values: NDArray[Any]) -> NDArray[Any]:
    """Store int64 values from 0 to 2^32 - 1 as uint32."""
    fits = values.dtype == np.int64 and 0 <= values.min() and values.max() < 1 << 32
    return values.astype(np.uint32) if fits else values
