"""Records in the rows of tables that lie in several files: what Parquet and Arrow do alike."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from datasets.data_files import DataFiles, find_data_files
from datasets.file_reader import MissingFile
from datasets.formats.arrow_columns import ArrowColumns, has_columns
from datasets.formats.arrow_damage import DamagedFile
from datasets.formats.arrow_lengths import find_lengths
from datasets.formats.arrow_roles import Roles, find_roles
from datasets.formats.arrow_table import ArrowTable, FoundTable, write_table_index
from datasets.formats.arrow_values import Row, read_rows
from datasets.group_cache import GroupCache
from datasets.index import Index
from datasets.index_cache import cached_index
from datasets.indexed_storage import IndexedStorage
from datasets.row_groups import Group
from datasets.sample import BadRecord, Record
from datasets.shared_file import EndOfFile, OpenFiles

_OPEN_FILES_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Survey:
    """What is known of a file's groups without their records.

    Attributes:
        rows: Rows of every group.
        sizes: What tells their content from another's.
        columns: Arrays of the columns that were asked for, in order, by name.
        lengths: Elements of the column of lists that was asked for, int64 arrays, in order.
    """

    rows: list[int]
    sizes: list[int]
    columns: dict[str, list[Any]]
    lengths: list[NDArray[np.int64]] = field(default_factory=list)


class TableFile(Protocol):
    """One file of a table, open; from any thread. Its methods raise DamagedFile."""

    @property
    def size_bytes(self) -> int:
        """What it costs to keep it open."""

    @property
    def schema(self) -> Any:
        """Its ``pyarrow.Schema``."""

    @property
    def num_groups(self) -> int:
        """How many groups of rows it has."""

    def survey(self, columns: Sequence[str], lengths: str | None) -> Survey:
        """Look at all groups, read some columns, and count the elements of lists in one."""

    def read_group(self, part: int, roles: Roles) -> tuple[Sequence[Any], int]:
        """The record batches of one group, validated, and what it costs to keep them."""


class TableStorage(IndexedStorage):
    """Tables whose every row is a record; the arguments are those of the storages built on it.

    Attributes:
        endings: Endings of the files in a folder.
        group_name: What the format calls a group of rows.
    """

    endings: ClassVar[tuple[str, ...]]
    group_name: ClassVar[str]

    def __init__(
        self,
        path: str,
        *,
        image_column: str | None = None,
        label_column: str | None = None,
        key_column: str | None = None,
        length_column: str | None = None,
        columns: list[str] | None = None,
        classes: list[str] | None = None,
        cache_bytes: Annotated[int, Ge(0)] = 128 << 20,
    ) -> None:
        self.path = os.path.abspath(path)
        self.image_column = image_column
        self.label_column = label_column
        self.key_column = key_column
        self.length_column = length_column
        self.columns = None if columns is None else tuple(columns)
        self.classes = None if classes is None else tuple(classes)
        self.cache_bytes = cache_bytes
        self._table: ArrowTable | None = None
        self._opened: _Opened | None = None

    @property
    def index(self) -> Index:
        """Key and label of every row."""
        return self._open_table().index

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields of every record; none where some may lack some, or are images."""
        table = self._open_table()
        if table.roles.images or table.roles.kinds:
            return ()
        label = ("label",) if "label" in table.index.columns else ()
        return (*table.roles.fields.values(), *label)

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read rows; those of a group that is damaged are bad records.

        Raises:
            OSError: The disk has trouble that did not pass.
        """
        table, indices = self._open_table(), np.asarray(indices, np.int64)
        opened = self._open()
        found: list[Row] = [""] * len(indices)
        for group in table.groups.wanted(table.index.rows(indices)):
            for place, row in zip(group.places.tolist(), opened.read(group), strict=True):
                found[place] = row
        return table.records(indices, found)

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, Any] | None:
        """Rows as columns, see `datasets.protocols.ColumnStorage`; None where one is damaged.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
            OSError: The disk has trouble that did not pass.
        """
        table, indices = self._open_table(), np.asarray(indices, np.int64)
        taken = self._open().take(
            table.groups.wanted(table.index.rows(indices)), indices.size, fields
        )
        if taken is not None and "label" in fields and "label" in table.index.columns:
            taken["label"] = table.index.values("label", indices)
        return taken

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_table": self._open_table(), "_opened": None}

    def _open(self) -> _Opened:
        opened = self._opened
        if opened is None or opened.pid != os.getpid():
            opened = self._opened = _Opened(
                self._open_table(),
                self._open_file,
                self.group_name,
                self.cache_bytes,
                self.columns,
            )
        return opened

    @staticmethod
    @abstractmethod
    def _open_file(files: OpenFiles, name: str, size_bytes: int) -> TableFile:
        """Open the file `name`, which had a size; DamagedFile, EndOfFile or MissingFile."""

    def _find_files(self) -> DataFiles:
        return find_data_files(self.path, endings=self.endings, where=str(self))

    def _open_table(self) -> ArrowTable:
        if self._table is None:
            files = self._find_files()
            index = cached_index(
                self._recipe("cache_bytes"),
                build=lambda path: self._build(path, files),
                is_current=lambda index: index.metadata["files"] == files.recipe,
            )
            self._table = ArrowTable.of(index, files)
        return self._table

    def _build(self, path: Path, files: DataFiles) -> None:
        """Look at the groups of all files, and at their labels and keys."""
        opened = OpenFiles(files.root)
        found: FoundTable | None = None
        for name, (size, _) in zip(files.names, files.marks, strict=True):
            where = f"{self}: {name}" if len(files.names) > 1 else str(self)
            try:
                file = self._open_file(opened, name, size)
                if found is None:
                    found = FoundTable(self._roles(file.schema), file.schema)
                found.refuse_other_columns(file.schema, where=where)
                label, key = found.roles.label, found.roles.key
                lengths = find_lengths(file.schema, found.roles, self.length_column, where=where)
                survey = file.survey([c for c in (label, key) if c is not None], lengths)
            except (DamagedFile, EndOfFile, MissingFile) as error:
                raise ValueError(
                    f"{where}: damaged or no {self.name.title()} file: {error}; copy it again, or "
                    f"take it away"
                ) from error
            found.groups.append(survey.rows)
            found.sizes.append(survey.sizes)
            found.labels += survey.columns.get(label or "", ())
            found.keys += survey.columns.get(key or "", ())
            found.lengths += survey.lengths
        assert found is not None
        write_table_index(path, files, found, self.classes, where=str(self))

    def _roles(self, schema: Any) -> Roles:
        return find_roles(
            schema,
            image_column=self.image_column,
            label_column=self.label_column,
            key_column=self.key_column,
            columns=self.columns,
            where=str(self),
        )


class _Opened:
    """The files as a process has opened them; its threads share it."""

    def __init__(
        self,
        table: ArrowTable,
        open_file: Callable[[OpenFiles, str, int], TableFile],
        group_name: str,
        cache_bytes: int,
        columns: Sequence[str] | None,
    ) -> None:
        self.pid = os.getpid()
        self._table = table
        self._open_file = open_file
        self._group_name = group_name
        self._columns = columns
        self._handles = OpenFiles(table.files.root)
        self._files = GroupCache(_OPEN_FILES_BYTES)
        self._groups = GroupCache(cache_bytes)
        self._taken_from = ArrowColumns(self._load, table.roles, cache_bytes)
        self._has_columns: bool | None = None

    def take(
        self, groups: Iterable[Group], size: int, fields: Collection[str]
    ) -> dict[str, Any] | None:
        """The wanted rows of groups as columns; None where they have none or are damaged."""
        try:
            if self._has_columns is None:
                schema = self._files.get(0, lambda: self._open(0)).schema
                self._has_columns = has_columns(schema, self._table.roles)
            if not self._has_columns:
                return None
            return self._taken_from.take(groups, size, fields)
        except (DamagedFile, EndOfFile, MissingFile):
            return None

    def read(self, group: Group) -> Sequence[Row]:
        """The wanted rows of a group."""
        try:
            batches = self._groups.get(group.number, lambda: self._load(group))
        except (DamagedFile, EndOfFile, MissingFile) as error:
            name = self._table.files.names[group.file]
            cause = f"{name}, {self._group_name} {group.part}: {error}"
            return [cause] * len(group.rows)
        found: list[Row] = []
        start = 0
        for batch in batches:
            inside = (group.rows >= start) & (group.rows < start + len(batch))
            rows = (group.rows[inside] - start).tolist()
            found += read_rows(batch, rows, self._table.roles, self._columns)
            start += len(batch)
        return found

    def _load(self, group: Group) -> tuple[Sequence[Any], int]:
        """Read a group: its record batches and what they cost."""
        file: TableFile = self._files.get(group.file, lambda: self._open(group.file))
        if group.part < file.num_groups:
            batches, size_bytes = file.read_group(group.part, self._table.roles)
            if sum(map(len, batches)) == group.count:
                return batches, size_bytes
        raise DamagedFile("it is not what it was when the index was made")

    def _open(self, number: int) -> tuple[TableFile, int]:
        files = self._table.files
        file = self._open_file(self._handles, files.names[number], files.marks[number][0])
        return file, file.size_bytes
