"""Read formats whose records are byte ranges of files."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.core.machine_cache import computed_once, signature_of
from penstock.core.record_codec import pack_record, unpack_record
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
from penstock.datasets.records.labels import FileLabels, column_ids, read_class_names, refuse_twice
from penstock.datasets.records.table import NO_LABEL, Table, numbered

_COMPRESSED = (".gz", ".tgz", ".zst")
_SCANS = 8
"""Number of files scanned at a time; disks answer small header reads faster in parallel."""


class Form(ABC):
    """A file format whose records are byte ranges; its attributes are its options.

    `decode` receives the columns of `row`. ``classes.txt`` names classes if `named_beside`. `twice`
    is the remedy for a duplicate key, `unlabelled` for a record without a label.
    """

    name: ClassVar[str]
    endings: ClassVar[tuple[str, ...]]
    row: ClassVar[tuple[str, ...]] = ()
    named_beside: ClassVar[bool] = False
    twice: ClassVar[str] = "write the files anew without it"
    unlabelled: ClassVar[str] = "label them"

    def __repr__(self) -> str:
        options = {k: v for k, v in vars(self).items() if k[0] != "_"}
        return f"{type(self).__name__} {options}"

    @abstractmethod
    def scan(self, file: RangeFile, file_bytes: int, name: str, max_bytes: int) -> Table:
        """Index the records of one file; RecordError if damaged."""

    def decode(self, data: memoryview, key: bytes, row: tuple[Any, ...]) -> dict[str, Any]:
        """Decode a record, or raise RecordError; `row` has its values of the columns `self.row`."""
        raise NotImplementedError(f"{type(self).__name__}.decode")

    def nothing(self, tables: Sequence[Table]) -> str:
        """Return the message for files without records."""
        return f"no row in {len(tables)} files; set dataset.storage.path"


class FileStorage(IndexedStorage):
    """The records of files of one format, on a disk or behind a URL.

    `path` is a file, a folder, a pattern such as ``train-{000..099}.tar``, or a list of these.
    """

    reads_urls = True
    _files: DataFiles
    _names: tuple[str, ...] | None
    labels: FileLabels | None = None  # of label files, in place of the form's own

    def __init__(
        self, form: Form, path: str | Sequence[str], *, classes: Sequence[str] | None = None
    ) -> None:
        paths = [path] if isinstance(path, str) else path
        if not paths:
            raise ValueError(f"{form.name}: path is an empty list; set dataset.storage.path")
        self.name = form.name
        self.form = form
        self.paths = tuple(map(absolute_path, paths))
        self.path = self.paths[0] + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
        self.classes = None if classes is None else tuple(classes)

    def mark(self) -> Any:
        self._files, self._names = self._find_files(), None
        if self.form.named_beside:
            self._names = read_class_names(self._files.root, where=str(self))
        version = None if self.labels is None else self.labels.csv_version()
        return [self._files.recipe, version, self._names]

    def _find_files(self) -> DataFiles:
        return find_data_files(self.paths, endings=self.form.endings, where=str(self))

    def open(self) -> OpenFiles:
        compressed = [name for name in self._files.names if name.endswith(_COMPRESSED)]
        return OpenFiles(self._files.unpacking(compressed))

    @property
    def is_remote(self) -> bool:  # type: ignore[override]
        """Return whether records are read from a URL, and not all from unpacked copies."""
        remote = super().is_remote and len(self.index) > 0
        return remote and not all(name.endswith(_COMPRESSED) for name in self._files.names)

    def shards(self) -> NDArray[np.int64]:
        return np.flatnonzero(np.diff(self.index.column("file"), prepend=-1))

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        index, names, opened, decode = self.index, self._files.names, self.opened, self.form.decode
        labelled = "label" in index.columns
        keys = index.raw_keys(indices)
        columns = index.take(indices).column
        rows: list[tuple[Any, ...]] = [()] * len(keys)
        if self.form.row:
            rows = list(zip(*(columns(name).tolist() for name in self.form.row), strict=True))
        found: list[dict[str, Any] | str] = [""] * len(keys)

        def read(run: Run) -> None:  # one at a time, to reuse the memory of the last run
            name, gone = names[run.file], None
            try:
                view = memoryview(opened[name].read_upto(run.offset, run.size_bytes))
            except MissingFile as error:
                view, gone = memoryview(b""), error
            for n, start, stop in run.parts:
                try:
                    if len(view) < stop:
                        early = f"the file ends {stop - len(view):,} bytes too early; copy it again"
                        raise gone or RecordError(early)
                    found[n] = fields = decode(view[start:stop], keys[n], rows[n])
                    if not labelled and "label" in fields:
                        raise RecordError("it has a label, and the first record had none")
                except RecordError as error:
                    found[n] = f"{name}: {error}"

        runs = find_runs(*map(columns, ("file", "offset", "span_bytes")))
        for _ in read_each(read, runs, place=self._files.root):
            pass
        return self.records(indices, found, keys)

    def scan(self) -> Table:
        table = self._joined(self._tables())
        if self.labels is None:
            return table
        return self.labels.add_to(table, self.classes, where=str(self))

    def _joined(
        self,
        tables: Sequence[Table],
        pattern: str = "",
        *,
        content: str = "",
        metadata: dict[str, Any] | None = None,
    ) -> Table:
        """Join the tables of all files; `pattern` makes the keys of numbered records."""
        filled = [table for table in tables if len(table)]
        if not filled:
            raise ValueError(f"{self}: {self.form.nothing(tables)}")
        names = [name for name in filled[0].columns if name != "label"]
        columns = {name: np.concatenate([t.column(name) for t in filled]) for name in names}
        place_of = self._place_of
        if "offset" in columns:
            columns.setdefault("size_bytes", columns["span_bytes"])
            counts = list(map(len, tables))
            columns["file"] = files = np.repeat(np.arange(len(tables), dtype=np.int32), counts)
            place_of = lambda row: self._files.names[files[row]]  # noqa: E731
        keys: Any = numbered(sum(map(len, filled)), pattern)
        if filled[0].metadata.get("keyed", True):
            keys = [key for table in filled for key in table.raw_keys()]
            refuse_twice(keys, place_of=place_of, where=str(self), remedy=self.form.twice)
        class_names = self._label(filled, keys, columns)
        metadata = {"files": [table.metadata for table in tables], **(metadata or {})}
        return Table(keys, columns, class_names, metadata, content=content)

    def _tables(self) -> list[Table]:
        """Scan new and changed files; take the tables of the others from the machine's cache."""
        marks: list[Any] = [tuple(mark) for mark in self._files.recipe]
        known: dict[Any, Table] = {}

        def scanned(mark: Any) -> Table:
            try:
                return self._scanned(*mark[:2])
            except ValueError as error:
                raise ValueError(f"{self}: {mark[0]}: {error}") from error

        def load(path: Path) -> bool | None:
            content = path.read_bytes()
            if content[:64] != hashlib.blake2b(content[64:]).digest():
                raise ValueError("it is damaged")
            tables = unpack_record(content[64:])[1]["tables"]
            known.update((mark, Table.of_plain(plain)) for mark, plain in tables)
            return known.keys() >= set(marks) or None

        def make(path: Path) -> None:
            missing = [mark for mark in marks if mark not in known]
            with ThreadPoolExecutor(_SCANS) as pool:
                known.update(zip(missing, pool.map(scanned, missing), strict=True))
            tables = [(mark, known[mark].plain()) for mark in marks]
            content = b"".join(pack_record("", {"tables": tables}).parts)
            path.write_bytes(hashlib.blake2b(content).digest() + content)

        if len(marks) == 1:
            return [scanned(marks[0])]
        about = [self.name, self.index_version, repr(self.form), self.paths, self._files.root]
        name = f"table-{signature_of(files=about)}"
        computed_once(name, ".tables", make=make, load=load, what=f"index of {self}")
        return [known[mark] for mark in marks]

    def _scanned(self, name: str, size_bytes: int) -> Table:
        compressed = [name] if name.endswith(_COMPRESSED) else []
        file = self._files.unpacking(compressed).open(name)
        size_bytes = os.path.getsize(file.path) if compressed else size_bytes
        table = self.form.scan(file, size_bytes, name, self.max_record_bytes)
        return table.replaced(metadata={**table.metadata, "count": len(table)})

    def _label(
        self, tables: Sequence[Table], keys: Any, columns: dict[str, NDArray[Any]]
    ) -> tuple[str, ...] | None:
        if not any("label" in table.columns for table in tables):
            return None
        parts = [
            t.column("label") if "label" in t.columns else np.full(len(t), NO_LABEL) for t in tables
        ]
        values: NDArray[np.int64] | list[str] = np.concatenate(parts).astype(np.int64)
        if len(missing := np.flatnonzero(values == NO_LABEL)):
            [key] = Table(keys).keys(missing[:1])
            raise ValueError(
                f"{self}: {len(missing):,} of {len(keys):,} samples lack a label, such as "
                f"{key!r:.100}; {self.form.unlabelled}"
            )
        names, classes = self._names, self.classes
        named = [table for table in tables if table.class_names]
        if named:  # declared names hold for files with numbers too
            stated = named[0].class_names if named[0].metadata.get("declares_classes") else None
            values = []
            for part, own in zip(parts, (t.class_names or stated for t in tables), strict=True):
                if own and not 0 <= part.min() <= part.max() < len(own):
                    raise ValueError(
                        f"{self}: labels from {part.min()} to {part.max()}, expected 0 to "
                        f"{len(own) - 1}: a file names {len(own)} classes"
                    )
                values += map(str, np.array(own, object)[part] if own else part.tolist())
            united = {table.class_names for table in named} != {stated}
            names, classes = None, classes or (names if united else stated)
        columns["label"], found = column_ids(
            values, names=names, classes=classes, place_of=self._place_of, where=f"{self}: labels"
        )
        return found

    def _place_of(self, row: int) -> str:
        return f"record {row}"
