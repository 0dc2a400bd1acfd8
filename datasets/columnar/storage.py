"""Read tables whose rows are records: one storage for formats that are read by groups."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import StorageCapabilities
from penstock.core.sample import BadRecord, Record, RecordError
from penstock.datasets.columnar.images import image_bytes
from penstock.datasets.files.access import (
    MissingFile,
    OpenFiles,
    RangeFile,
    absolute_path,
    read_each,
)
from penstock.datasets.files.data_files import refuse_escape
from penstock.datasets.files.group_cache import GroupCache
from penstock.datasets.records.file_storage import FileStorage, Form
from penstock.datasets.records.index import IndexContent
from penstock.datasets.records.table import Table

if TYPE_CHECKING:
    from penstock.datasets.columnar.group import Group, Row, Texts
    from penstock.datasets.columnar.schema import Roles

_OPEN_FILES_BYTES = 64 << 20


class TableFile:
    """One open file of a table; threads share it, and its methods raise RecordError.

    Attributes:
        schema: Its ``pyarrow.Schema``.
        num_groups: Number of its groups of rows.
        counts: Rows of each group.
        content: Numbers that differ where the content differs.
        size_bytes: Memory that the open file takes.
    """

    schema: Any
    num_groups: int
    counts: list[int]
    content: list[int]
    size_bytes: int

    @abstractmethod
    def read(
        self, group: int, columns: Sequence[str], images: Collection[str] = ()
    ) -> tuple[Any, int]:
        """Return columns of a group, a validated ``pyarrow.Table``, and the bytes it takes.

        Args:
            group: Number of the group.
            columns: Names of columns.
            images: The image structs among them, of which only the bytes are read.
        """

    def column(self, name: str) -> Any:
        """Read a column of all groups, a ``pyarrow.ChunkedArray``."""
        import pyarrow as pa

        chunks = []
        for group, rows in enumerate(self.counts):
            column = self.read(group, [name])[0].column(name)
            if len(column) != rows:
                raise RecordError(f"column {name!r} has {len(column):,} of {rows:,} rows")
            chunks += column.chunks
        return pa.chunked_array(chunks, self.schema.field(name).type)

    def has_nulls(self, group: int, name: str) -> bool:
        """Return whether a column has a null in a group."""
        from penstock.datasets.columnar.schema import has_nulls

        return any(map(has_nulls, self.read(group, [name])[0].column(name).chunks))


@dataclass(frozen=True, repr=False)
class TableForm(Form):
    """A format whose files are tables; its options are those of `TableStorage`.

    Attributes:
        group_name: The format's name for a group of rows.
    """

    group_name: ClassVar[str]

    image_column: str | None = None
    label_column: str | None = None
    key_column: str | None = None
    length_column: str | None = None
    columns: Sequence[str] | None = None

    @abstractmethod
    def open(self, file: RangeFile, file_bytes: int, max_bytes: int) -> TableFile:
        """Open a file; RecordError for a damaged one."""

    def roles(self, schema: Any) -> Roles:
        """Find the roles of the columns."""
        from penstock.datasets.columnar.schema import find_roles

        return find_roles(
            schema,
            image_column=self.image_column,
            label_column=self.label_column,
            key_column=self.key_column,
            columns=self.columns,
        )

    def scan(self, file: RangeFile, file_bytes: int, name: str, max_bytes: int) -> Table:
        """Read labels, keys and lengths of a file, and the places of its nulls."""
        from penstock.datasets.columnar import schema as schemas

        opened = self.open(file, file_bytes, max_bytes)
        schema, count, groups = opened.schema, sum(opened.counts), range(opened.num_groups)
        roles = self.roles(schema)
        length = schemas.find_lengths(schema, roles, self.length_column)
        kinds = {n: schema.field(n).type for n in (*roles.fields, roles.label, roles.key) if n}
        floats = set()
        for column in () if roles.kinds else roles.fields:
            if schemas.holds_whole_numbers(kinds[column]):
                for group in groups:
                    with suppress(RecordError):  # its rows are bad records
                        if opened.has_nulls(group, column):
                            floats.add(column)
                            break
        columns: dict[str, NDArray[Any]] = {}
        keys: Sequence[bytes] = range(count)  # type: ignore[assignment]
        classes: tuple[str, ...] | None = None
        declared = False
        if roles.key is not None:
            keys = _keys(opened.column(roles.key), repr(roles.key))
        if roles.label is not None and count:
            columns["label"], classes = _labels(opened.column(roles.label), roles)
            declared = classes is not None and list(classes) == list(roles.class_names or ())
        if length is not None:
            columns["length"] = self._lengths(opened.column(length))
        whole = not (roles.images or roles.kinds or roles.paths)
        meta = {
            "keyed": roles.key is not None,
            "groups": opened.counts,
            "content": opened.content,
            "roles": asdict(replace(roles, class_names=None, floats=sorted(floats))),
            "types": {column: str(kind) for column, kind in kinds.items()},
            "whole": whole and all(schemas.is_column(kinds[column]) for column in roles.fields),
            "declares_classes": declared,
            "paths": None if roles.paths is None else opened.column(roles.paths).to_pylist(),
        }
        return Table(keys, columns, classes, meta)

    def _lengths(self, column: Any) -> NDArray[np.int64]:
        """Return the length of each row, int64 [n]."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.length_column is not None and column.null_count:
            row = column.is_null().index(True).as_py()
            raise ValueError(
                f"length_column {self.length_column!r} is null in record {row}, expected "
                f"a length in every row; fill it in, or set "
                f"dataset.storage.length_column to another column"
            )
        if not pa.types.is_integer(column.type):
            column = pc.list_value_length(column)
        return np.asarray(pc.fill_null(column.cast(pa.int64()), 0), np.int64)

    def read_group(
        self, file: TableFile, group: int, meta: Mapping[str, Any], max_bytes: int
    ) -> tuple[Group, int]:
        """Read a group; return it and the bytes it takes."""
        from penstock.datasets.columnar.group import Group
        from penstock.datasets.columnar.schema import Roles

        roles, counts = Roles(**meta["roles"]), meta["groups"]
        if group < file.num_groups:
            table, size_bytes = file.read(group, list(roles.fields), roles.images)
            if table.num_rows == counts[group]:
                return Group(table, roles, max_bytes), size_bytes
        raise RecordError("it is not what it was when the index was made")


class TableStorage(FileStorage):
    """The rows of tables in files; for the arguments see `storages.parquet.ParquetStorage`.

    Attributes:
        form_class: Its format.
    """

    reading_arguments = ("cache_bytes", "root", "follow_symlinks")
    index_version = 4
    form_class: ClassVar[type[TableForm]]
    form: TableForm
    _groups: _Groups
    _meta: dict[str, Any]

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
        taken = None if columns is None else tuple(columns)
        form = self.form_class(image_column, label_column, key_column, length_column, taken)
        super().__init__(form, path, classes=classes)
        self.root = None if root is None else absolute_path(root)
        self.follow_symlinks = follow_symlinks
        self.cache_bytes = cache_bytes

    @property
    def marks_records(self) -> bool:  # type: ignore[override]
        """Whether its own files hold all of its records: images may be files of their own."""
        return bool(len(self.index)) and self._meta["roles"]["paths"] is None

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields of every record; empty unless all are numbers and texts."""
        label = ("label",) if "label" in self.index.columns else ()
        return (*self._meta["roles"]["fields"].values(), *label) if self._meta["whole"] else ()

    @property
    def capabilities(self) -> StorageCapabilities:
        """It gives columns; its shards are groups of rows."""
        return StorageCapabilities(columns=self, shards=self._firsts)

    def _firsts(self) -> NDArray[np.int64]:
        len(self.index)
        return self._groups.starts

    def record_bytes(self, indices: NDArray[np.int64]) -> None:  # type: ignore[override]
        """Return None: a record's size shows when it is read."""

    def scan(self) -> IndexContent:
        """Join the tables of all files."""
        tables, names = self._tables(), self._files.names
        first = tables[0].meta
        roles = first["roles"]
        for name, table in zip(names, tables, strict=True):
            for role in ("label", "key"):
                if (other := table.meta["roles"][role]) != roles[role]:
                    raise ValueError(
                        f"{self}: {name}: the {role} is the column {other!r}, and {roles[role]!r} "
                        f"in the first file; type dataset.storage.{role}_column={roles[role]}"
                    )
            for column, kind in first["types"].items():
                if (found := table.meta["types"].get(column)) != kind:
                    raise ValueError(
                        f"{self}: {name}: column {column!r} is {found or 'missing'}, and {kind} in "
                        f"the first file; write all files with the same columns"
                    )
        floats = sorted({column for t in tables for column in t.meta["roles"]["floats"]})
        contents = [[table.meta["groups"], table.meta["content"]] for table in tables]
        tables = [replace(table, meta={**table.meta, "paths": None}) for table in tables]
        content = self._in_order(tables, "{:08d}", f"{self}: key_column {roles['key']!r}")
        content["content"] = repr([contents, sorted(roles["fields"].items()), floats])
        content["metadata"] = {**content["metadata"], "floats": floats}
        return content

    def _scanned(self, name: str, size_bytes: int) -> Table:
        where = f"{self}: {name}" if len(self._files.names) > 1 else str(self)
        try:
            table = super()._scanned(name, size_bytes)
            for row, path in enumerate(table.meta["paths"] or ()):
                try:
                    refuse_escape(path or "", self._image_root)
                except ValueError as error:
                    raise ValueError(f"{self._place_of(name, row)}: {error}") from None
            return table
        except RecordError as error:
            raise ValueError(
                f"{where}: damaged or no {self.name.title()} file: {error}; copy it again, or "
                f"take it away"
            ) from error
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error

    def _place_of(self, name: str, row: int) -> str:
        return f"record {row}"

    def learn(self, metadata: dict[str, Any]) -> None:
        """Keep the groups of the files, and the roles of the columns."""
        super().learn(metadata)
        files = metadata["files"]
        self._groups = _Groups([file["groups"] for file in files])
        self._meta = {**files[0], "roles": {**files[0]["roles"], "floats": metadata["floats"]}}

    def open(self) -> _Opened:  # type: ignore[override]
        """Prepare to read groups of rows; files are opened when they are needed."""
        from penstock.datasets.columnar.group import Texts

        texts = {column: Texts() for column in self._meta["roles"]["fields"]}
        files, groups = GroupCache(_OPEN_FILES_BYTES), GroupCache(self.cache_bytes)
        return _Opened(super().open(), files, groups, texts)

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read rows; rows of a damaged group are bad records.

        Raises:
            OSError: The disk has trouble that did not pass.
        """
        indices = np.asarray(indices, np.int64)
        numbers, opened = self.index.rows(indices), self.opened
        found: list[Row] = [""] * len(indices)
        for part in self._groups.wanted(numbers):
            try:
                rows = self._group(opened, part).read(part.rows, self.form.columns)
            except RecordError as error:
                name, group_name = self._files.names[part.file], self.form.group_name
                rows = [f"{name}, {group_name} {part.group}: {error}"] * len(part.rows)
            for place, row in zip(part.places.tolist(), rows, strict=True):
                found[place] = row
        if self._meta["roles"]["paths"] is not None:
            found = list(read_each(self._with_image, found, place=self._image_root))
        return self.records(indices, found)

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
        rows = self.index.rows(indices)
        if not self._meta["whole"]:
            return None
        names = {c: f for c, f in self._meta["roles"]["fields"].items() if f in fields}
        opened: _Opened = self.opened  # once: threads that meet in it may make two
        texts = opened.texts
        parts: dict[str, list[tuple[NDArray[np.int64], Any]]] = {column: [] for column in names}
        try:
            for part in self._groups.wanted(rows) if names else ():
                group = self._group(opened, part)
                for column, found in parts.items():
                    found.append((part.places, group.column(column, part.rows, texts[column])))
        except RecordError:
            return None
        taken: dict[str, Any] = {}
        for column, found in parts.items() if len(rows) else ():
            if "string" in self._meta["types"][column]:
                taken[names[column]] = texts[column].column(found, len(rows))
                continue
            taken[names[column]] = values = np.empty(len(rows), found[0][1].dtype)
            for places, some in found:
                values[places] = some
        if "label" in fields and "label" in self.index.columns:
            taken["label"] = self.index.values("label", indices)
        return taken

    @property
    def _image_root(self) -> str:
        return self.root or self._files.root

    def _with_image(self, row: Row) -> Row:
        """Return the fields of a row with its image in place of the path, or the reason why not."""
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

    def _group(self, opened: _Opened, part: _Part) -> Group:
        def load() -> tuple[Group, int]:
            file = opened.files.get(part.file, partial(self._open_file, opened, part.file))
            meta = {**self._meta, "groups": part.counts}
            return self.form.read_group(file, part.group, meta, self.max_record_bytes)

        group: Group = opened.groups.get(part.number, load)
        return group

    def _open_file(self, opened: _Opened, number: int) -> tuple[TableFile, int]:
        name, (size_bytes, _) = self._files.names[number], self._files.marks[number]
        file = self.form.open(opened.handles[name], size_bytes, self.max_record_bytes)
        return file, file.size_bytes


class _Opened(NamedTuple):
    """The state of a process: its handles, open files, groups, and texts by column."""

    handles: OpenFiles
    files: GroupCache
    groups: GroupCache
    texts: dict[str, Texts]


class _Part(NamedTuple):
    """Wanted rows of a group.

    Attributes:
        number: The group among those of all files.
        file: Number of its file.
        group: The group in its file.
        counts: Rows of all groups of the file.
        rows: Wanted rows, int64 [n], ascending.
        places: Their places in the request, int64 [n].
    """

    number: int
    file: int
    group: int
    counts: Sequence[int]
    rows: NDArray[np.int64]
    places: NDArray[np.int64]


class _Groups:
    """The groups of all files, one behind the other.

    Args:
        counts: Rows of every group, by file.
    """

    def __init__(self, counts: Sequence[Sequence[int]]) -> None:
        self._counts = counts
        self._ends = np.cumsum(np.array([c for file in counts for c in file], np.int64))
        self._file_ends = np.cumsum(np.array([len(file) for file in counts], np.int64))

    @property
    def starts(self) -> NDArray[np.int64]:
        """The first row of each group that has any, int64 [n]."""
        return np.unique(np.append(0, self._ends[:-1]))

    def wanted(self, indices: NDArray[np.int64]) -> Iterator[_Part]:
        """Yield the groups that hold the rows `indices`, int64 [n], each once, in file order."""
        if not len(indices):
            return
        order = np.argsort(indices, kind="stable")
        rows = indices[order]
        groups = np.searchsorted(self._ends, rows, side="right")
        parts = [slice(None)]  # mostly one group
        if groups[0] != groups[-1]:
            cuts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(rows)]
            parts = list(map(slice, cuts, cuts[1:]))
        for part in parts:
            number = int(groups[part.start or 0])
            file = int(np.searchsorted(self._file_ends, number, side="right"))
            before = int(self._ends[number - 1]) if number else 0
            group = number - (int(self._file_ends[file - 1]) if file else 0)
            yield _Part(number, file, group, self._counts[file], rows[part] - before, order[part])


def _labels(column: Any, roles: Roles) -> tuple[NDArray[np.int64], tuple[str, ...] | None]:
    """Return the labels of a column, int64 [n], and their names, or None for plain numbers."""
    import pyarrow as pa

    from penstock.datasets.columnar.schema import is_text

    column = _plain(column, "label", repr(roles.label))
    if not is_text(column.type):
        names = roles.class_names
        return column.cast(pa.int64()).to_numpy(), None if names is None else tuple(names)
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), tuple(encoded.dictionary.to_pylist())


def _keys(column: Any, name: str) -> list[bytes]:
    """Encode keys: text, bytes or whole numbers."""
    import pyarrow as pa

    from penstock.datasets.columnar.schema import is_bytes, is_text

    column = _plain(column, "key", name)
    if pa.types.is_integer(column.type):
        return [b"%d" % value for value in column.to_pylist()]
    if is_text(column.type):
        return [value.encode() for value in column.to_pylist()]
    if not is_bytes(column.type):
        raise ValueError(
            f"key_column {name} is {column.type}, expected text, bytes or whole numbers"
        )
    keys: list[bytes] = column.to_pylist()
    return keys


def _plain(column: Any, what: str, name: str) -> Any:
    """Return a column without nulls, and without a dictionary."""
    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise ValueError(
            f"column {name}: record {row} has no {what} ({column.null_count:,} in all); fill it "
            f"in, or leave the column out by columns"
        )
    return column.cast(getattr(column.type, "value_type", column.type))
