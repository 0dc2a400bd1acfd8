"""Records in the rows of tables that lie in several files: what Parquet and Arrow do alike."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import StorageCapabilities
from penstock.core.sample import BadRecord, Record, RecordError
from penstock.datasets.columnar.groups import ArrowColumns, Group, RowGroups, has_columns
from penstock.datasets.columnar.roles import (
    Roles,
    find_lengths,
    find_roles,
    holds_whole_numbers,
    row_lengths,
)
from penstock.datasets.columnar.rows import image_bytes
from penstock.datasets.columnar.values import Row, key_texts, label_ids, read_rows
from penstock.datasets.files.access import (
    MissingFile,
    OpenFiles,
    absolute_path,
    read_each,
)
from penstock.datasets.files.data_files import DataFiles, find_data_files, refuse_escape
from penstock.datasets.files.group_cache import GroupCache
from penstock.datasets.records.index import IndexContent
from penstock.datasets.records.indexed_storage import IndexedStorage

_OPEN_FILES_BYTES = 64 << 20


class TableFile(Protocol):
    """One file of a table, open; from any thread. Its methods raise RecordError."""

    @property
    def size_bytes(self) -> int:
        """Size of what is kept while it is open."""

    @property
    def schema(self) -> Any:
        """Its ``pyarrow.Schema``."""

    @property
    def num_groups(self) -> int:
        """Number of its groups of rows."""

    def groups(self) -> tuple[list[int], list[int]]:
        """Count the rows of every group, and give what tells their content from another's."""

    def column(self, name: str) -> Iterator[Any]:
        """Read a column, an array or ``pyarrow.ChunkedArray`` for each group, validated."""

    def has_nulls(self, name: str) -> bool:
        """Return whether a column has a null (`roles.has_nulls`) in a group that can be read."""

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
    reading_arguments = ("cache_bytes", "root", "follow_symlinks")
    index_version = 3
    _files: DataFiles
    _groups: RowGroups
    _roles: Roles

    def __init__(
        self,
        path: str,
        *,
        image_column: str | None = None,
        label_column: str | None = None,
        key_column: str | None = None,
        length_column: str | None = None,
        columns: list[str] | None = None,
        root: str | None = None,
        follow_symlinks: bool = False,
        classes: list[str] | None = None,
        cache_bytes: Annotated[int, Ge(0)] = 128 << 20,
    ) -> None:
        self.path = absolute_path(path)
        self.image_column = image_column
        self.label_column = label_column
        self.key_column = key_column
        self.length_column = length_column
        self.columns = None if columns is None else tuple(columns)
        self.root = None if root is None else absolute_path(root)
        self.follow_symlinks = follow_symlinks
        self.classes = None if classes is None else tuple(classes)
        self.cache_bytes = cache_bytes

    @property
    def marks_records(self) -> bool:  # type: ignore[override]
        """Whether its own files hold all of its records: images may be files of their own."""
        return bool(len(self.index)) and self._roles.paths is None

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields of every record; none where some may lack some, or are images."""
        label = ("label",) if "label" in self.index.columns else ()
        if self._roles.images or self._roles.kinds or self._roles.paths:
            return ()
        return (*self._roles.fields.values(), *label)

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read rows; those of a group that is damaged are bad records.

        Raises:
            OSError: The disk has trouble that did not pass.
        """
        indices = np.asarray(indices, np.int64)
        opened: _OpenTable = self.opened
        found: list[Row] = [""] * len(indices)
        for group in self._groups.wanted(self.index.rows(indices)):
            for place, row in zip(group.places.tolist(), opened.read(group), strict=True):
                found[place] = row
        if self._roles.paths is not None:
            found = list(read_each(self._with_image, found, place=self._image_root))
        return self.records(indices, found)

    @property
    def _image_root(self) -> str:
        return self.root or self._files.root

    def _with_image(self, row: Row) -> Row:
        """The fields of a row with its image in place of the path, or why that cannot be had."""
        if isinstance(row, str):
            return row
        try:
            image = image_bytes(
                row["image"],
                self._image_root,
                follow_symlinks=self.follow_symlinks,
                max_bytes=self.max_record_bytes,
            )
        except (ValueError, MissingFile) as error:
            return str(error)
        return {**row, "image": image}

    @property
    def capabilities(self) -> StorageCapabilities:
        """It gives columns; its shards are groups of rows."""
        return StorageCapabilities(columns=self, shards=self._group_starts)

    def _group_starts(self) -> NDArray[np.int64]:
        len(self.index)
        return self._groups.starts

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, Any] | None:
        """Rows as columns, see `core.contracts.ColumnStorage`; None where one is damaged.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
            OSError: The disk has trouble that did not pass.
        """
        indices = np.asarray(indices, np.int64)
        opened: _OpenTable = self.opened
        groups = self._groups.wanted(self.index.rows(indices))
        taken = opened.take(groups, indices.size, fields)
        if taken is not None and "label" in fields and "label" in self.index.columns:
            taken["label"] = self.index.values("label", indices)
        return taken

    @abstractmethod
    def _open_file(self, files: OpenFiles, name: str, size_bytes: int) -> TableFile:
        """Open the file `name`, which had a size; RecordError or MissingFile."""

    def _find_files(self) -> DataFiles:
        return find_data_files(self.path, endings=self.endings, where=str(self))

    def mark(self) -> Any:
        """Names, sizes and times of the files."""
        self._files = self._find_files()
        return self._files.recipe

    def learn(self, metadata: dict[str, Any]) -> None:
        """Keep where the rows lie in the files, and what the columns become."""
        names = ("fields", "images", "kinds", "paths", "floats")
        fields, images, kinds, paths, floats = (metadata[name] for name in names)
        self._roles = Roles(
            fields, frozenset(images), None, None, None, kinds, paths, frozenset(floats)
        )
        self._groups = RowGroups(metadata["groups"])

    def open(self) -> _OpenTable:
        """Prepare to read groups of rows; files are opened when they are needed."""
        return _OpenTable(self)

    def scan(self) -> IndexContent:
        """Look at the groups of all files, and at their labels, keys and lengths."""
        import pyarrow as pa

        files, opened = self._files, OpenFiles(self._files)
        schemas, groups, sizes = [], [], []
        labels, keys, lengths = [], [], list[NDArray[np.int64]]()
        floats: set[str] = set()
        for name, (size, _) in zip(files.names, files.marks, strict=True):
            where = f"{self}: {name}" if len(files.names) > 1 else str(self)
            try:
                file = self._open_file(opened, name, size)
                schemas.append(file.schema)
                roles = find_roles(
                    schemas[0],
                    image_column=self.image_column,
                    label_column=self.label_column,
                    key_column=self.key_column,
                    columns=self.columns,
                    where=str(self),
                )
                _refuse_other_columns(file.schema, schemas[0], roles, where=where)
                floats |= {
                    name
                    for name in roles.fields
                    if not roles.kinds and name not in floats
                    if holds_whole_numbers(file.schema.field(name).type) and file.has_nulls(name)
                }
                length = find_lengths(file.schema, roles, self.length_column, where=where)
                its_groups, its_sizes = file.groups()
                labels += [] if roles.label is None else list(file.column(roles.label))
                its_keys = [] if roles.key is None else list(file.column(roles.key))
                keys += its_keys
                if roles.paths is not None:
                    paths = its_keys if roles.paths == roles.key else file.column(roles.paths)
                    _refuse_escapes(paths, self._image_root, where=where)
                for chunk in () if length is None else file.column(length):
                    if self.length_column is not None and chunk.null_count:
                        row = sum(map(len, lengths)) + chunk.is_null().index(True).as_py()
                        raise ValueError(
                            f"{where}: length_column {length!r} is null in record {row}, expected "
                            f"a length in every row; fill it in, or set "
                            f"dataset.storage.length_column to another column"
                        )
                    lengths.append(row_lengths(chunk))
            except RecordError as error:
                raise ValueError(
                    f"{where}: damaged or no {self.name.title()} file: {error}; copy it again, or "
                    f"take it away"
                ) from error
            groups.append(its_groups)
            sizes.append(its_sizes)
        count = sum(map(sum, groups))
        if count == 0:
            raise ValueError(f"{self}: no row in {len(files.names)} files; nothing to read")
        columns: dict[str, NDArray[Any]] = {}
        class_names = None
        if roles.label is not None:
            columns["label"], class_names = label_ids(
                pa.chunked_array(labels), roles, self.classes, where=str(self)
            )
        if lengths:
            columns["length"] = np.concatenate(lengths)
        named: Any = {"key_pattern": "{:08d}", "count": count}
        if roles.key is not None:
            where = f"{self}: key_column {roles.key!r}"
            named = {"keys": key_texts(pa.chunked_array(keys), where=where)}
        return {
            **named,
            "columns": columns,
            "class_names": class_names,
            "content": repr([groups, sizes, sorted(roles.fields.items()), sorted(floats)]),
            "metadata": {
                "groups": groups,
                "fields": roles.fields,
                "images": sorted(roles.images),
                "kinds": roles.kinds,
                "paths": roles.paths,
                "floats": sorted(floats),
            },
        }


def _refuse_escapes(chunks: Iterable[Any], root: str, *, where: str) -> None:
    """Raise ValueError if a path leads out of the folder of the images."""
    names = (name for chunk in chunks for name in chunk.to_pylist())
    for row, name in enumerate(names):
        try:
            refuse_escape(name or "", root)
        except ValueError as error:
            raise ValueError(f"{where}: record {row}: {error}") from None


def _refuse_other_columns(schema: Any, first: Any, roles: Roles, *, where: str) -> None:
    """Raise ValueError if a file lacks a column, or has it with another type than the first."""
    for name in (*roles.fields, roles.label, roles.key):
        if name is None:
            continue
        found = schema.field(name).type if name in schema.names else None
        if found != first.field(name).type:
            raise ValueError(
                f"{where}: column {name!r} is {found or 'missing'}, and {first.field(name).type} "
                f"in the first file; write all files with the same columns"
            )


class _OpenTable:
    """The files of a table as a process has opened them; its threads share it."""

    def __init__(self, table: TableStorage) -> None:
        self._table = table
        self._handles = OpenFiles(table._files)
        self._opened = GroupCache(_OPEN_FILES_BYTES)
        self._groups = GroupCache(table.cache_bytes)
        self._columns = ArrowColumns(self._load, table._roles, table.cache_bytes)
        self._has_columns: bool | None = None

    def take(
        self, groups: Iterable[Group], size: int, fields: Collection[str]
    ) -> dict[str, Any] | None:
        """The wanted rows of groups as columns; None where they have none or are damaged."""
        try:
            if self._has_columns is None:
                schema = self._opened.get(0, lambda: self._open(0)).schema
                self._has_columns = has_columns(schema, self._table._roles)
            if not self._has_columns:
                return None
            return self._columns.take(groups, size, fields)
        except RecordError:
            return None

    def read(self, group: Group) -> Sequence[Row]:
        """The wanted rows of a group."""
        try:
            batches = self._groups.get(group.number, lambda: self._load(group))
        except RecordError as error:
            name = self._table._files.names[group.file]
            cause = f"{name}, {self._table.group_name} {group.part}: {error}"
            return [cause] * len(group.rows)
        found: list[Row] = []
        start = 0
        for batch in batches:
            inside = (group.rows >= start) & (group.rows < start + len(batch))
            rows = (group.rows[inside] - start).tolist()
            table = self._table
            found += read_rows(
                batch, rows, table._roles, table.columns, max_bytes=table.max_record_bytes
            )
            start += len(batch)
        return found

    def _load(self, group: Group) -> tuple[Sequence[Any], int]:
        """Read a group: its record batches and what they cost."""
        file: TableFile = self._opened.get(group.file, lambda: self._open(group.file))
        if group.part < file.num_groups:
            batches, size_bytes = file.read_group(group.part, self._table._roles)
            if sum(map(len, batches)) == group.count:
                return batches, size_bytes
        raise RecordError("it is not what it was when the index was made")

    def _open(self, number: int) -> tuple[TableFile, int]:
        files = self._table._files
        file = self._table._open_file(self._handles, files.names[number], files.marks[number][0])
        return file, file.size_bytes
