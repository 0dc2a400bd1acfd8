"""Records in the rows of Parquet files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from datasets.data_files import DataFiles, find_data_files
from datasets.file_reader import MissingFile
from datasets.formats.arrow_damage import DamagedFile
from datasets.formats.arrow_roles import find_roles
from datasets.formats.arrow_table import ArrowTable, FoundTable, write_table_index
from datasets.formats.arrow_values import Row, read_rows
from datasets.formats.parquet_files import read_column, read_footer, read_group
from datasets.group_cache import GroupCache
from datasets.index import Index
from datasets.index_cache import cached_index
from datasets.row_groups import Group
from datasets.sample import BadRecord, Record
from datasets.shared_file import EndOfFile, FileView, OpenFiles
from pipeline.registry import register

_FOOTER_CACHE_BYTES = 64 << 20
_CHANGED = "it is not what it was when the index was made"


@register("storage", "parquet")
class ParquetStorage:
    """Parquet files: every row is a record, every column a field of its name.

    The format is read in row groups: a record costs the columns of its whole group. A batch reads
    each group that it touches once, and the groups used last are kept, so reading in order costs
    every group once. For shuffled reading, write small row groups (a hundred images), or give
    the cache room for the data, or pack it.

    Image structs of ``bytes`` and ``path``, as the public hubs write them, give their bytes; lists
    of numbers are arrays, times whole numbers in the column's unit. Pages that have checksums are
    compared with them.

    Args:
        path: A file, a folder of ``.parquet`` files, or a pattern such as ``data/train-*.parquet``.
        image_column: The column of the field ``image``; None: ``image``, or the only one with
            images.
        label_column: The column of the field ``label``: class ids or names; None: ``label``, or
            the only one that the hub's metadata calls class labels.
        key_column: The column of the keys; None: keys are row numbers, over all files in the
            order of their names.
        columns: The columns that are read; None: all.
        classes: Class names by id; None: those of the metadata, or those found.
        cache_bytes: How much of the row groups used last is kept, for each process.
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
        return f"parquet {self.path}"

    def __len__(self) -> int:
        return len(self.index)

    @property
    def index(self) -> Index:
        """Key and label of every row."""
        return self._open_table().index

    def fingerprint(self) -> str:
        """Hash of keys, labels, and the sizes of the row groups."""
        return self.index.fingerprint()

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read rows; those of a group that is damaged are bad records.

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
            files = find_data_files(self.path, endings=(".parquet", ".parq"), where=str(self))
            hidden = ("_table", "_opened", "cache_bytes")
            recipe = {name: value for name, value in vars(self).items() if name not in hidden}
            index = cached_index(
                {"storage": "parquet", **recipe},
                build=lambda path: self._build(path, files),
                is_current=lambda index: index.metadata["files"] == files.recipe,
            )
            self._table = ArrowTable.of(index, files)
        return self._table

    def _build(self, path: Path, files: DataFiles) -> None:
        """Look at the footers of all files, and at their labels and keys."""
        opened = OpenFiles(files.root)
        found: FoundTable | None = None
        for name, (size, _) in zip(files.names, files.marks, strict=True):
            where = f"{self}: {name}" if len(files.names) > 1 else str(self)
            view = FileView(opened[name], size)
            try:
                footer = read_footer(view)
                schema = footer.schema.to_arrow_schema()
                if found is None:
                    roles = find_roles(
                        schema,
                        image_column=self.image_column,
                        label_column=self.label_column,
                        key_column=self.key_column,
                        columns=self.columns,
                        where=str(self),
                    )
                    found = FoundTable(roles, schema)
                found.refuse_other_columns(schema, where=where)
                parts = [footer.row_group(i) for i in range(footer.num_row_groups)]
                found.groups.append([part.num_rows for part in parts])
                found.sizes.append([part.total_byte_size for part in parts])
                for column, chunks in ((roles.label, found.labels), (roles.key, found.keys)):
                    if column is not None:
                        chunks += read_column(view, footer, column).chunks
            except (DamagedFile, EndOfFile, MissingFile) as error:
                raise ValueError(
                    f"{where}: damaged or no Parquet file: {error}; copy it again, or take it away"
                ) from error
        assert found is not None
        write_table_index(path, files, found, self.classes, where=str(self))


class _Opened:
    """The files as a process has opened them; its threads share it."""

    def __init__(self, table: ArrowTable, cache_bytes: int) -> None:
        self.pid = os.getpid()
        self._table = table
        self._files = OpenFiles(table.files.root)
        self._footers = GroupCache(_FOOTER_CACHE_BYTES)
        self._groups = GroupCache(cache_bytes)

    def read(self, group: Group) -> Sequence[Row]:
        """The wanted rows of a group."""
        try:
            batches = self._groups.get(group.number, lambda: self._load(group))
        except (DamagedFile, EndOfFile, MissingFile) as error:
            name = self._table.files.names[group.file]
            cause = f"{name}, row group {group.part}: {error}"
            return [cause] * len(group.rows)
        found: list[Row] = []
        start = 0
        for batch in batches:
            inside = (group.rows >= start) & (group.rows < start + len(batch))
            rows = (group.rows[inside] - start).tolist()
            found += read_rows(batch, rows, self._table.roles)
            start += len(batch)
        return found

    def _load(self, group: Group) -> tuple[Any, int]:
        """Read a row group: its record batches and their size."""
        files = self._table.files
        view = FileView(self._files[files.names[group.file]], files.marks[group.file][0])
        footer = self._footers.get(group.file, lambda: _with_size(read_footer(view)))
        if group.part >= footer.num_row_groups:
            raise DamagedFile(_CHANGED)
        table = read_group(view, footer, group.part, self._table.roles.leaves)
        if len(table) != group.count:
            raise DamagedFile(_CHANGED)
        return table.to_batches(), table.nbytes


def _with_size(footer: Any) -> tuple[Any, int]:
    return footer, footer.serialized_size
