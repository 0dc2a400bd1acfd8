"""The storage of records in HDF5 files."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import partial
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import StorageCapabilities
from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record
from penstock.core.user_errors import is_trouble
from penstock.datasets.files.data_files import DataFiles, find_data_files
from penstock.datasets.records.index import IndexContent
from penstock.datasets.records.indexed_storage import IndexedStorage
from penstock.datasets.records.labels import read_class_names
from penstock.datasets.records.split_names import SPLIT_OF
from penstock.datasets.storages.hdf5.arrays import OpenFiles
from penstock.datasets.storages.hdf5.guard import run_guarded
from penstock.datasets.storages.hdf5.layout import Column, scan_files
from penstock.datasets.storages.hdf5.objects import (
    DAMAGE,
    ENDINGS,
    explained,
    follow,
    in_one_line,
    is_group,
    need_h5py,
    open_file,
)
from penstock.datasets.storages.hdf5.tables import RowTable, SampleTable


@register("storage", "hdf5")
class Hdf5Storage(IndexedStorage):
    """HDF5 files: arrays with a sample per row, or a group per sample.

    A dataset is a field: ``images`` is ``image``, ``labels`` is ``label`` (class ids or names),
    any other has its own name. Images are uint8 [N, H, W, C], or encoded ones as lists of bytes.
    Keys are those of a dataset ``keys``, or row numbers over all files; groups are keys by their
    names. A group's label may be its attribute ``label``. Class names are those of a dataset or an
    attribute ``class_names``, ``classes`` or ``label_names``, or the lines of ``classes.txt``.

    Files are read by h5py, whose lock threads share; arrays in one piece are mapped and take no
    lock. Of chunked ones, a batch decodes each chunk that it touches once: for shuffled reading,
    make chunks small, or do without. Chunks with Fletcher's checksums are compared with them;
    other damage inside of numbers cannot be seen. Nothing outside the file is followed.

    Args:
        path: A file, a folder of ``.h5`` files, or a pattern such as ``data/part-*.h5``; a group
            in them stands behind: ``data.h5/train``. Groups train, val, test of one file are parts.
        fields: Paths of datasets below the group, or that of a sample, by field:
            ``{image: camera/rgb}``; None: all there are.
        classes: Class names by id; None: those of the files, or those found.
        cache_bytes: How much of the decoded chunks used last is kept, for each process.
    """

    name = "hdf5"
    reading_arguments = ("cache_bytes",)
    index_version = 3

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
        self._files: DataFiles
        self._table: RowTable | SampleTable

    @staticmethod
    def parts_inside(path: str) -> dict[str, str] | None:
        """Find the groups ``train``, ``val`` and ``test`` of a file; None without ``train``."""
        name, group = _data_path(os.path.abspath(path))
        try:
            with explained(), open_file(name) as file:
                top = follow(file["/"], group)
                found = {
                    split: os.path.join(path, part)
                    for part, split in SPLIT_OF.items()
                    if is_group(top.get(part))
                }
        except (*DAMAGE, OSError) as error:  # who opens the file says it
            if is_trouble(error):
                raise
            return None
        return found if "train" in found and len(found) > 1 else None

    @property
    def capabilities(self) -> StorageCapabilities:
        """Declare that it gives columns."""
        return StorageCapabilities(columns=self)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that every record has; none where they differ in shape."""
        label = ("label",) if "label" in self.index.columns else ()
        return (*self._table.fields, *label) if self._table.fields else ()

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read records; arrays may be read-only views. One that is damaged is a bad record.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
            OSError: The disk has trouble that did not pass.
        """
        indices, opened = np.asarray(indices, np.int64), self.opened
        return self.records(indices, self._table.read(opened, self.index, indices))

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, NDArray[Any]] | None:
        """Read records as columns; None where one is bad. See `core.contracts.ColumnStorage`.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
            OSError: The disk has trouble that did not pass.
        """
        indices, opened = np.asarray(indices, np.int64), self.opened
        assert isinstance(self._table, RowTable)
        taken = self._table.take(opened, self.index.rows(indices), fields, allocate)
        if taken is not None and "label" in fields and "label" in self.index.columns:
            taken["label"] = self.index.values("label", indices)
        return taken

    def mark(self) -> Any:
        """Names, sizes and times of the files, and the names of the classes beside them."""
        path, _ = _data_path(self.path)
        self._files = find_data_files(path, endings=ENDINGS, where=str(self))
        return [self._files.recipe, read_class_names(self._files.root, where=str(self))]

    def scan(self) -> IndexContent:
        """Look into the files, in a process that a damaged one may end."""
        with in_one_line(str(self)):
            need_h5py()
        look = partial(
            scan_files,
            self._files,
            _data_path(self.path)[1],
            fields=self.field_paths,
            class_names=read_class_names(self._files.root, where=str(self)),
            classes=self.classes,
            max_bytes=self.max_record_bytes,
            where=str(self),
        )
        content: IndexContent = run_guarded(look, where=str(self))
        return content

    def learn(self, metadata: dict[str, Any]) -> None:
        """Keep where the fields lie."""
        columns = metadata["columns"]
        if columns is None:
            self._table = SampleTable(metadata["types"])
        else:
            kept = [{name: Column.of(one) for name, one in each.items()} for each in columns]
            self._table = RowTable(kept, metadata["counts"])

    def open(self) -> OpenFiles:
        """Prepare to read; files are opened when they are needed."""
        return OpenFiles(
            self._files, _data_path(self.path)[1], self.cache_bytes, self.max_record_bytes
        )


def _data_path(path: str) -> tuple[str, str]:
    """Split a path into that of the files and the group in them, as in ``data.h5/train``."""
    parts = path.split(os.sep)
    for count in range(len(parts), 0, -1):
        start = os.sep.join(parts[:count]) or os.sep
        if os.path.exists(start) or start.lower().endswith(ENDINGS):
            if os.path.isdir(start) and count < len(parts):
                break
            return start, "/".join(parts[count:])
    return path, ""
