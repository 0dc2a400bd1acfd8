"""Storage of records in the rows of HDF5 data sets."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record, RecordError
from penstock.core.user_errors import is_trouble
from penstock.datasets.files.access import RangeFile
from penstock.datasets.files.group_cache import GroupCache
from penstock.datasets.records.file_storage import FileStorage, Form
from penstock.datasets.records.labels import read_class_names
from penstock.datasets.records.split_names import SPLIT_OF
from penstock.datasets.records.table import Table, by_part
from penstock.datasets.storages.hdf5.file import (
    DAMAGE,
    File,
    explained,
    follow,
    need_h5py,
)
from penstock.datasets.storages.hdf5.rows import MISSING
from penstock.datasets.storages.hdf5.samples import Samples

ENDINGS = (".h5", ".hdf5", ".hdf", ".he5")
_MOST_OPEN = 128  # each takes two descriptors


@dataclass(frozen=True, repr=False)
class Hdf5(Form):
    """HDF5 files; see `Hdf5Storage` for the options."""

    group: str
    fields: dict[str, str] | None

    name = "hdf5"
    endings = ENDINGS

    def scan(self, file: RangeFile, file_bytes: int, name: str, max_bytes: int) -> Table:
        """Read keys, labels and sizes of a file."""
        try:
            opened = File(file.path, file.root, GroupCache(0))
            with opened.h5:
                return opened.asked(lambda: Samples(opened, self.group, self.fields)).table()
        except OSError as error:
            raise RecordError(str(error)) from error

    def class_names(self, root: str, *, where: str) -> tuple[str, ...] | None:
        """Read the lines of ``classes.txt``."""
        return read_class_names(root, where=where)


@register("storage", "hdf5")
class Hdf5Storage(FileStorage):
    """HDF5 files: data sets whose rows are the samples.

    A data set is a field: ``images`` is ``image``, ``labels`` is ``label`` (class ids or names),
    and others keep their names. Images are uint8 [N, H, W, C], or encoded files as rows of
    variable length. Keys are the rows of a data set ``keys``, or row numbers over all files. Class
    names are a data set or an attribute ``class_names``, ``classes`` or ``label_names``, or the
    lines of ``classes.txt``.

    Contiguous arrays are mapped. In chunked arrays, a batch decodes each chunk that it touches
    once: for shuffled reading, use small chunks or none. Damaged numbers are detected only in
    chunks with Fletcher's checksums.

    Args:
        path: A file, a folder of ``.h5`` files, or a pattern such as ``data/part-*.h5``. A group
            follows the file: ``data.h5/train``. Groups train, val and test of a file are parts.
        fields: Paths of data sets below the group, by field: ``{image: camera/rgb}``; None: all.
        classes: Class names by id; None: the names in the files, or the labels.
        cache_bytes: Size of the cache of decoded chunks of each process.
    """

    name = "hdf5"
    reading_arguments = ("cache_bytes",)
    index_version = 5
    reads_urls = False
    form: Hdf5

    def __init__(
        self,
        path: str,
        *,
        fields: dict[str, str] | None = None,
        classes: list[str] | None = None,
        cache_bytes: Annotated[int, Ge(0)] = 128 << 20,
    ) -> None:
        data, group = _data_path(os.path.abspath(path))
        paths = None if fields is None else {f: p.strip("/") for f, p in fields.items()}
        super().__init__(Hdf5(group, paths), data, classes=classes)
        self.path = os.path.abspath(path)
        self.cache_bytes = cache_bytes

    @staticmethod
    def parts_inside(path: str) -> dict[str, str] | None:
        """Return the groups ``train``, ``val`` and ``test`` of a file; None without ``train``."""
        name, group = _data_path(os.path.abspath(path))
        try:
            with explained():
                need_h5py()
                import h5py

                with h5py.File(name) as file:
                    top = follow(file["/"], group)
                    parts = [part for part in SPLIT_OF if isinstance(top.get(part), h5py.Group)]
        except (*DAMAGE, OSError) as error:  # reported when the storage opens the file
            if is_trouble(error):
                raise
            return None
        found = {SPLIT_OF[part]: os.path.join(path, part) for part in parts}
        return found if "train" in found and len(found) > 1 else None

    def shards(self) -> NDArray[np.int64]:
        """Return 0, for no shards: a chunk is decoded alone."""
        return np.zeros(1, np.int64)

    @property
    def column_fields(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the fields of every record; empty unless all are arrays of fixed shape."""
        return tuple(self.index.metadata["fields"])

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read records; arrays may be read-only views.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
            OSError: A disk error persisted.
        """
        indices = np.asarray(indices, np.int64)
        found: list[dict[str, Any] | str] = [{} for _ in range(len(indices))]
        for number, places, rows in by_part(self._ends, self.index.rows(indices)):
            for name, values in self._values(number, rows):
                for place, value in zip(places.tolist(), values, strict=True):
                    fields = found[place]
                    if isinstance(fields, str) or value is MISSING:
                        continue
                    if isinstance(value, RecordError):
                        found[place] = f"{name}: {value}"
                    else:
                        fields[name] = value
        return self.records(indices, found)

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, NDArray[Any]] | None:
        """Read records as columns; None if one is bad. See `core.contracts.Storage`.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
            OSError: A disk error persisted.
        """
        indices = np.asarray(indices, np.int64)
        rows, taken = self.index.rows(indices), dict[str, NDArray[Any]]()
        try:
            first = {
                n: r for n, r in self._samples(0).fields.items() if n in fields and n != "label"
            }
            largest = max(first, key=lambda name: first[name].row_bytes, default=None)
            for name, reader in first.items():
                memory = None
                if allocate is not None and name == largest:
                    memory = memoryview(allocate(len(rows) * reader.row_bytes))
                taken[name] = np.ndarray((len(rows), *reader.shape[1:]), reader.native, memory)
            for number, places, inside in by_part(self._ends, rows):
                for name, out in taken.items():
                    self._samples(number).fields[name].gather(places, inside, out)
        except DAMAGE:
            return None
        if "label" in fields and "label" in self.index.columns:
            taken["label"] = self.index.values("label", indices)
        return taken

    def scan(self) -> Table:
        """Join the tables of all files."""
        tables, names = self._tables(), self._files.names
        first = tables[0].metadata
        for name, table in zip(names, tables, strict=True):
            if table.metadata["needed"] != first["needed"]:
                raise ValueError(
                    f"{self}: {name}: has {', '.join(table.metadata['needed'])}, and {names[0]} "
                    f"has {', '.join(first['needed'])}; write the same data sets into all files, "
                    f"or name those to read in dataset.storage.fields"
                )
        if not sum(map(len, tables)):
            raise ValueError(f"{self}: the data sets are empty, expected a row for each sample")
        kinds = [table.metadata["kinds"] for table in tables]
        if not all("image" in kind and kind["image"] for kind in kinds):
            tables = [table.replaced(columns=_without_sides(table)) for table in tables]
        is_even = kinds.count(kinds[0]) == len(kinds) and None not in kinds[0].values()
        label = ["label"] if any("label" in table.columns for table in tables) else []
        fields = [*kinds[0], *label] if is_even else []
        return self._in_order(
            tables, "{}", str(self), content=repr(kinds[0]), metadata={"fields": fields}
        )

    def _scanned(self, name: str, size_bytes: int) -> Table:
        try:
            return super()._scanned(name, size_bytes)
        except RecordError as error:
            where = f"{self}: {name}" if len(self._files.names) > 1 else str(self)
            text = f"{where}: {error}".encode("utf-8", "surrogateescape")
            raise ValueError(text.decode("utf-8", "backslashreplace")) from error

    def learn(self, metadata: dict[str, Any]) -> None:
        """Store the metadata, and the number of rows of each file."""
        super().learn(metadata)
        self._ends = np.cumsum([file["count"] for file in metadata["files"]])

    def open(self) -> tuple[GroupCache, GroupCache]:  # type: ignore[override]
        """Return caches of open files and of decoded chunks."""
        return GroupCache(_MOST_OPEN), GroupCache(self.cache_bytes)

    def _samples(self, number: int) -> Samples:
        files, chunks = self.opened
        samples: Samples = files.get(number, lambda: (self._open(number, chunks), 1))
        return samples

    def _open(self, number: int, chunks: GroupCache) -> Samples:
        path = self._files.paths[number]
        file = File(path, self._files.root, chunks)
        try:
            return file.asked(lambda: Samples(file, self.form.group, self.form.fields))
        except BaseException:
            file.h5.close()
            raise

    def _values(self, number: int, rows: NDArray[np.int64]) -> Iterator[tuple[str, list[Any]]]:
        """Read rows of a file; yield each field's values, or a `RecordError`."""
        try:
            for name, reader in self._samples(number).fields.items():
                if name != "label":
                    yield name, reader.values(rows)
        except DAMAGE as error:
            yield self._files.names[number], [RecordError(str(error))] * len(rows)


def _without_sides(table: Table) -> dict[str, NDArray[Any]]:
    return {n: column for n, column in table.arrays.items() if n not in ("height", "width")}


def _data_path(path: str) -> tuple[str, str]:
    """Split a path such as ``data.h5/train`` into the path of files and the group in them."""
    parts = path.split(os.sep)
    for count in range(len(parts), 0, -1):
        start = os.sep.join(parts[:count]) or os.sep
        if os.path.exists(start) or start.lower().endswith(ENDINGS):
            if os.path.isdir(start) and count < len(parts):
                break
            return start, "/".join(parts[count:])
    return path, ""
