"""Records in HDF5 files."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from datasets.data_files import DataFiles, find_data_files
from datasets.formats.hdf5_arrays import OpenedFile, Places
from datasets.formats.hdf5_found import ENDINGS, FoundFile, data_path, read_found, write_places
from datasets.formats.hdf5_process import ScanError, Scanner
from datasets.formats.hdf5_reader import ArrayReader
from datasets.formats.hdf5_rows import field_columns, key_array, write_row_index
from datasets.formats.hdf5_samples import write_sample_index
from datasets.formats.hdf5_tables import Column, RowTable, SampleTable
from datasets.formats.hdf5_texts import named_classes
from datasets.index import Index
from datasets.index_cache import cached_index
from datasets.indexed_storage import IndexedStorage
from datasets.sample import BadRecord, Record
from datasets.shared_file import OpenFiles
from pipeline.registry import register

_VAL_NAMES = ("val", "valid", "validation")
CLASSES_NAME = "classes.txt"


@register("storage", "hdf5")
class Hdf5Storage(IndexedStorage):
    """HDF5 files: arrays with a sample per row, or a group per sample.

    A dataset is a field: ``images`` is ``image``, ``labels`` is ``label`` (class ids or names),
    any other has its own name. Images are uint8 [N, H, W, C], or encoded ones as lists of bytes.
    Keys are those of a dataset ``keys``, or row numbers over all files; groups are keys by their
    names. A group's label may be its attribute ``label``. Class names are those of a dataset or an
    attribute ``class_names``, ``classes`` or ``label_names``, or the lines of ``classes.txt``.

    The library is asked where everything lies, in a process of its own; samples are read from
    their places without it, so that threads do not wait for its lock and a damaged file stops
    nothing. Arrays in one piece are views of the mapped file. Of chunked ones, a batch decodes
    each chunk that it touches once: for shuffled reading, make chunks small, or do without.
    Chunks with Fletcher's checksums are compared with them; other damage inside of numbers cannot
    be seen. Nothing outside the file is followed.

    Args:
        path: A file, a folder of ``.h5`` files, or a pattern such as ``data/part-*.h5``; a group
            in them stands behind: ``data.h5/train``. Groups train and val of one file are parts.
        fields: Paths of datasets below the group, or that of a sample, by field:
            ``{image: camera/rgb}``; None: all there are.
        classes: Class names by id; None: those of the files, or those found.
        cache_bytes: How much of the decoded chunks used last is kept, for each process.
    """

    name = "hdf5"

    def __init__(
        self,
        path: str,
        *,
        fields: dict[str, str] | None = None,
        classes: list[str] | None = None,
        cache_bytes: Annotated[int, Ge(0)] = 128 << 20,
    ) -> None:
        self.path = os.path.abspath(path)
        self.field_paths = None if fields is None else {f: p.strip("/") for f, p in fields.items()}
        self.classes = None if classes is None else tuple(classes)
        self.cache_bytes = cache_bytes
        self._state: _Known | None = None
        self._opened: _Opened | None = None

    @staticmethod
    def parts_inside(path: str) -> dict[str, str] | None:
        """The groups ``train`` and ``val`` of a file, as paths, if it has both."""
        file, group = data_path(os.path.abspath(path))
        if not os.path.isfile(file):
            return None
        names = _groups(file, group, os.stat(file).st_mtime_ns)
        found = [name for name in ("train", *_VAL_NAMES) if name in names]
        if len(found) < 2 or found[0] != "train":
            return None
        return {"train": os.path.join(path, "train"), "val": os.path.join(path, found[1])}

    @property
    def index(self) -> Index:
        """Key, label and size_bytes of every record; height and width of decoded images."""
        return self._known().index

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that every record has; none where they differ in shape."""
        known = self._known()
        if not known.table.gives_columns:
            return ()
        names = known.table.names
        if "label" not in known.index.columns:
            return names
        at = 1 if names[:1] == ("image",) else 0
        return (*names[:at], "label", *names[at:])

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read records; arrays may be read-only views. One that is damaged is a bad record.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
            OSError: The disk has trouble that did not pass.
        """
        known, indices = self._known(), np.asarray(indices, np.int64)
        opened = self._open()
        rows = known.index.rows(indices)
        found = known.table.read(opened.reader, opened.file, known.index, rows)
        labels: list[int | None] = [None] * len(indices)
        if "label" in known.index.columns:
            labels = known.index.values("label", indices).tolist()
        records: list[Record | BadRecord] = []
        keys = known.index.keys(indices)
        for i, key, label, fields in zip(indices.tolist(), keys, labels, found, strict=True):
            if isinstance(fields, str):
                records.append(BadRecord(i, key, fields))
            elif label is None:
                records.append(Record(i, key, fields))
            else:
                image = {"image": fields.pop("image")} if "image" in fields else {}
                records.append(Record(i, key, {**image, "label": label, **fields}))
        return records

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, NDArray[Any]] | None:
        """Records as columns; None where one is bad. See `datasets.protocols.ColumnStorage`.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
            OSError: The disk has trouble that did not pass.
        """
        known, opened = self._known(), self._open()
        rows = known.index.rows(indices)
        assert isinstance(known.table, RowTable)
        taken = known.table.take(opened.reader, opened.file, rows, fields, allocate)
        if taken is None:
            return None
        if "label" in fields and "label" in known.index.columns:
            taken["label"] = known.index.values("label", np.asarray(indices, np.int64))
        return {name: taken[name] for name in self.fields if name in taken}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_state": self._known(), "_opened": None}

    def _open(self) -> _Opened:
        opened = self._opened
        if opened is None or opened.pid != os.getpid():
            known = self._known()
            opened = self._opened = _Opened(
                known.files, known.bases, known.places, self.cache_bytes
            )
        return opened

    def _known(self) -> _Known:
        if self._state is None:
            path, group = data_path(self.path)
            files = find_data_files(path, endings=ENDINGS, where=str(self))
            wanted = None if self.field_paths is None else sorted(self.field_paths.values())
            places = cached_index(
                {"storage": "hdf5 places", "path": self.path, "fields": wanted},
                build=lambda index: write_places(index, files, group, wanted, where=str(self)),
                is_current=lambda index: index.metadata["files"] == files.recipe,
            )
            self._state = self._look(files, places)
        return self._state

    def _look(self, files: DataFiles, places: Index) -> _Known:
        """What the arrays are for, and the index of the records."""
        found, types = read_found(places)
        layout = found[0].layout
        if any(file.layout != layout for file in found):
            raise ValueError(
                f"{self}: some files hold arrays and others groups of samples; name files of one "
                f"kind: dataset.storage.path='part-*.h5'"
            )
        bases = [file.base for file in found]
        opened = _Opened(files, bases, places, self.cache_bytes)
        beside = self._names_beside(files)
        recipe = self._recipe("cache_bytes") | {"beside": beside}
        options: dict[str, Any] = {
            "reader": opened.reader,
            "opened": opened.file,
            "class_names": named_classes(found, opened.reader, opened.file, where=str(self))
            or beside,
            "classes": self.classes,
            "metadata": {"files": files.recipe},
            "where": str(self),
        }

        def index_of(write: Callable[[Path], None]) -> Index:
            return cached_index(
                recipe, build=write, is_current=lambda i: i.metadata["files"] == files.recipe
            )

        if layout == "groups":
            fields = self.field_paths
            index = index_of(lambda p: write_sample_index(p, found, types, fields, **options))
            return _Known(files, bases, places, index, SampleTable(types, index.metadata["axes"]))
        columns = self._columns(files, found)
        keys = [
            key_array(file, each, where=str(self))
            for file, each in zip(found, columns, strict=True)
        ]
        counts = [
            next((column.array.shape[0] for column in each.values()), key.shape[0] if key else 0)
            for each, key in zip(columns, keys, strict=True)
        ]
        index = index_of(lambda p: write_row_index(p, columns, keys, counts, **options))
        return _Known(files, bases, places, index, RowTable(columns, counts))

    def _columns(self, files: DataFiles, found: list[FoundFile]) -> list[dict[str, Column]]:
        """Columns by field of every file; all have the same fields."""
        columns = []
        for name, file in zip(files.names, found, strict=True):
            where = f"{self}: {name}" if len(found) > 1 else str(self)
            columns.append(field_columns(file, self.field_paths, where=where))
            if columns[-1].keys() != columns[0].keys() and not file.packed:
                raise ValueError(
                    f"{where}: has the fields {', '.join(columns[-1])}, and {files.names[0]} has "
                    f"{', '.join(columns[0])}; write all files with the same datasets, or name "
                    f"those to read in dataset.storage.fields"
                )
        return columns

    def _names_beside(self, files: DataFiles) -> list[str] | None:
        beside = Path(files.root, CLASSES_NAME)
        return beside.read_text(encoding="utf-8").splitlines() if beside.is_file() else None


@lru_cache(maxsize=64)
def _groups(file: str, group: str, mtime_ns: int) -> list[str]:
    """Names of the groups in a group of a file; none where it cannot be opened."""
    try:
        with Scanner() as scanner:
            return scanner.groups(file, group)
    except ScanError:  # who opens the file says it
        return []


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known without reading a record."""

    files: DataFiles
    bases: list[int]
    places: Index
    index: Index
    table: RowTable | SampleTable


class _Opened:
    """The files as a process has opened them; its threads share it."""

    def __init__(self, files: DataFiles, bases: list[int], places: Index, cache_bytes: int) -> None:
        self.pid = os.getpid()
        self._files = files
        self._bases = bases
        self._opened = OpenFiles(files.root)
        columns = (places.column(name) for name in ("offset", "stored_bytes", "mask"))
        self.reader = ArrayReader(Places(*columns), cache_bytes)

    def file(self, number: int) -> OpenedFile:
        """A file by number."""
        file = self._opened[self._files.names[number]]
        return OpenedFile(file, self._files.marks[number][0], self._bases[number])
