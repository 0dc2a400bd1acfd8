"""Records in the rows of Arrow files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from datasets.data_files import DataFiles, find_data_files
from datasets.file_reader import MissingFile, retried
from datasets.formats.arrow_damage import DamagedFile
from datasets.formats.arrow_files import ArrowFile
from datasets.formats.arrow_roles import find_roles
from datasets.formats.arrow_table import ArrowTable, FoundTable, write_table_index
from datasets.formats.arrow_values import Row, read_rows
from datasets.formats.saved_folder import saved_files
from datasets.group_cache import GroupCache
from datasets.index import Index
from datasets.index_cache import cached_index
from datasets.row_groups import Group
from datasets.sample import BadRecord, Record
from pipeline.registry import register

_OPEN_FILES = 1024


@register("storage", "arrow")
class ArrowStorage:
    """Arrow IPC files and streams: every row is a record, every column a field of its name.

    The files are mapped into memory, and a row costs its own bytes alone; where the buffers are
    compressed, it costs its whole record batch, and those used last are kept. Before a process
    first uses a record batch it checks that all its places lie inside.

    Image structs of ``bytes`` and ``path``, as the public hubs write them, give their bytes; lists
    of numbers are arrays, times whole numbers in the column's unit.

    Args:
        path: A file (Feather, version 2, is one); a folder of ``.arrow``, ``.feather`` or ``.ipc``
            files, or one that ``save_to_disk`` of the public hub wrote; or a pattern such as
            ``train-*.arrow``.
        image_column: The column of the field ``image``; None: ``image``, or the only one with
            images.
        label_column: The column of the field ``label``: class ids or names; None: ``label``, or
            the only one that the hub's metadata calls class labels.
        key_column: The column of the keys; None: keys are row numbers, over all files in order.
        columns: The columns that are read; None: all.
        classes: Class names by id; None: those of the metadata, or those found.
        cache_bytes: How much of compressed record batches is kept, for each process.
    """

    def __init__(
        self,
        path: str,
        *,
        image_column: str | None = None,
        label_column: str | None = None,
        key_column: str | None = None,
        columns: list[str] | None = None,
        classes: list[str] | None = None,
        cache_bytes: Annotated[int, Ge(0)] = 128 << 20,
    ) -> None:
        self.path = os.path.abspath(path)
        self.image_column = image_column
        self.label_column = label_column
        self.key_column = key_column
        self.columns = None if columns is None else tuple(columns)
        self.classes = None if classes is None else tuple(classes)
        self.cache_bytes = cache_bytes
        self._table: ArrowTable | None = None
        self._opened: _Opened | None = None

    def __str__(self) -> str:
        return f"arrow {self.path}"

    def __len__(self) -> int:
        return len(self.index)

    @property
    def index(self) -> Index:
        """Key and label of every row."""
        return self._open_table().index

    def fingerprint(self) -> str:
        """Hash of keys, labels, and the sizes of the files and record batches."""
        return self.index.fingerprint()

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read rows; those of a record batch that is damaged are bad records.

        Raises:
            OSError: The disk has trouble that did not pass.
        """
        table, indices = self._open_table(), np.asarray(indices, np.int64)
        opened = self._opened
        if opened is None or opened.pid != os.getpid():
            opened = self._opened = _Opened(table, self.cache_bytes)
        found: list[Row] = [""] * len(indices)
        for group in table.groups.wanted(table.index.rows(indices)):
            for place, row in zip(group.places.tolist(), opened.read(group), strict=True):
                found[place] = row
        return table.records(indices, found)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_table": self._open_table(), "_opened": None}

    def _open_table(self) -> ArrowTable:
        if self._table is None:
            files = self._find_files()
            hidden = ("_table", "_opened", "cache_bytes")
            recipe = {name: value for name, value in vars(self).items() if name not in hidden}
            index = cached_index(
                {"storage": "arrow", **recipe},
                build=lambda path: self._build(path, files),
                is_current=lambda index: index.metadata["files"] == files.recipe,
            )
            self._table = ArrowTable.of(index, files)
        return self._table

    def _find_files(self) -> DataFiles:
        saved = saved_files(self.path, where=str(self)) if os.path.isdir(self.path) else None
        endings = (".arrow", ".feather", ".ipc")
        return saved or find_data_files(self.path, endings=endings, where=str(self))

    def _build(self, path: Path, files: DataFiles) -> None:
        """Look at the record batches of all files, and at their labels and keys."""
        found: FoundTable | None = None
        for name, (size, _) in zip(files.names, files.marks, strict=True):
            where = f"{self}: {name}" if len(files.names) > 1 else str(self)
            try:
                file = _open_file(files, name)
                if found is None:
                    roles = find_roles(
                        file.schema,
                        image_column=self.image_column,
                        label_column=self.label_column,
                        key_column=self.key_column,
                        columns=self.columns,
                        where=str(self),
                    )
                    found = FoundTable(roles, file.schema)
                found.refuse_other_columns(file.schema, where=where)
                wanted = [name for name in (roles.label, roles.key) if name is not None]
                counts = []
                for part in range(file.num_batches):
                    batch, _ = file.batch(part, wanted)
                    counts.append(batch.num_rows)
                    if roles.label is not None:
                        found.labels.append(batch.column(0))
                    if roles.key is not None:
                        found.keys.append(batch.column(len(wanted) - 1))
                found.groups.append(counts)
                found.sizes.append([size])
            except (DamagedFile, MissingFile) as error:
                raise ValueError(
                    f"{where}: damaged or no Arrow file: {error}; copy it again, or take it away"
                ) from error
        assert found is not None
        write_table_index(path, files, found, self.classes, where=str(self))


class _Opened:
    """The files as a process has mapped them; its threads share it."""

    def __init__(self, table: ArrowTable, cache_bytes: int) -> None:
        self.pid = os.getpid()
        self._table = table
        self._files = GroupCache(_OPEN_FILES)
        self._batches = GroupCache(cache_bytes)

    def read(self, group: Group) -> Sequence[Row]:
        """The wanted rows of a record batch."""
        try:
            batch = self._batches.get(group.number, lambda: self._load(group))
        except (DamagedFile, MissingFile) as error:
            name = self._table.files.names[group.file]
            return [f"{name}, record batch {group.part}: {error}"] * len(group.rows)
        return read_rows(batch, group.rows.tolist(), self._table.roles)

    def _load(self, group: Group) -> tuple[Any, int]:
        """Find a record batch in its file and check it: the batch and its size."""
        files = self._table.files
        name = files.names[group.file]
        file: ArrowFile = self._files.get(group.file, lambda: (_open_file(files, name), 1))
        loaded = None
        if group.part < file.num_batches:
            loaded = file.batch(group.part, list(self._table.roles.fields))
        if loaded is None or len(loaded[0]) != group.count:
            raise DamagedFile("it is not what it was when the index was made")
        return loaded


def _open_file(files: DataFiles, name: str) -> ArrowFile:
    path = os.path.join(files.root, name)
    return retried(lambda: ArrowFile(path), path=path, root=files.root)
