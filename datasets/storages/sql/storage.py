"""Read records in the rows of a database, by their keys."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Gt
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record, RecordError, too_large
from penstock.core.user_errors import ExplainedError
from penstock.datasets.columnar.images import image_bytes
from penstock.datasets.files.access import MissingFile
from penstock.datasets.files.data_files import refuse_escape
from penstock.datasets.files.passwords import from_environment
from penstock.datasets.records.indexed_storage import IndexedStorage
from penstock.datasets.records.table import Table
from penstock.datasets.storages.sql.server import (
    BadStatement,
    Server,
    change_mark,
    file_of,
    parse_url,
    shown,
)
from penstock.datasets.storages.sql.table import (
    ColumnRoles,
    FieldType,
    Rows,
    convert,
    find_kinds,
    find_roles,
    find_rows,
    key_bytes,
    key_value,
    label_ids,
    mark_of,
    plain,
    select_from,
    warn_of_scans,
)

Row = tuple[Any, ...] | str | None
"""A row, or the reason why it cannot be read; None for a missing row."""

TIMEOUT_S = 30.0
_BATCH_ROWS, _SCAN_ROWS = 256, 1 << 16
_CHANGED = "and changed since the rows were listed; name a version_column to list them again"


class Listed(NamedTuple):
    """Keys of all rows, labels, and sizes of images in the rows."""

    keys: list[bytes]
    labels: list[Any]
    sizes: list[int | None]
    key_type: int


@register("storage", "sql")
class SqlStorage(IndexedStorage):
    """Rows of a database: PostgreSQL, MariaDB, MySQL or SQLite, a table, view or query.

    Every row is a record, every column a field. The rows are listed once, in the order of their
    keys, and read by key, so the key column should have an index.

    Args:
        url: ``postgresql://user@host/database``, ``mariadb://...``, ``mysql://...``,
            ``sqlite:///file.db``; ``env:NAME`` reads it from the environment. See docs/sql.md for
            passwords.
        table: A table or view, or ``schema.table``; None: the only table.
        query: One SELECT in place of `table`.
        image_column: The column of the field ``image``: its bytes, or the path of a file; None: the
            first of ``image``, ``file_name``, ``filename`` and ``path`` that exists.
        label_column: The column of the field ``label``: class ids or names; None: ``label``; an
            empty text: no labels.
        key_column: The column of the keys; None: ``key``, else the primary key, else SQLite's row
            numbers of a table.
        version_column: A column whose largest value grows whenever a row changes, such as the time
            of the last change; the rows are then listed anew. None: rows may be added and removed;
            a row whose label or size changes is a bad record. SQLite files detect changes
            themselves.
        columns: The other columns to read; None: all.
        types: ``array`` for columns of ``.npy`` files' bytes, ``json`` for JSON texts.
        root: The folder of relative image paths, which these may not leave; None: the working
            directory, or the folder of the SQLite file. ``/`` allows absolute paths.
        follow_symlinks: Follow links of images to outside of `root`.
        classes: Class names by id; None: the classes found, sorted (numbers are ids already).
        timeout_s: Maximum seconds of a statement.
    """

    name = "sql"
    reading_arguments = ("root", "follow_symlinks", "timeout_s")
    index_version = 2

    def __init__(
        self,
        url: str,
        *,
        table: str | None = None,
        query: str | None = None,
        image_column: str | None = None,
        label_column: str | None = None,
        key_column: str | None = None,
        version_column: str | None = None,
        columns: list[str] | None = None,
        types: dict[str, FieldType] | None = None,
        root: str | None = None,
        follow_symlinks: bool = False,
        classes: list[str] | None = None,
        timeout_s: Annotated[float, Gt(0)] = TIMEOUT_S,
    ) -> None:
        self._url = parse_url(from_environment(url, setting="dataset.storage.url"))
        self._file = file_of(self._url)
        self.url = shown(self._url)
        self.table = table
        self.query = query
        self.image_column = image_column
        self.label_column = label_column
        self.key_column = key_column
        self.version_column = version_column
        self.columns = columns
        self.types = types or {}
        self.root = os.path.abspath(root or os.path.dirname(self._file or "") or os.curdir)
        self.follow_symlinks = follow_symlinks
        self.classes = classes
        self.timeout_s = timeout_s
        self._layout: dict[str, Any] = {}
        if table is not None and query is not None:
            raise ValueError(f"{self}: table and query, expected one of them; leave one out")

    def __str__(self) -> str:
        what = self.table or ("" if self.query is None else "by a query")
        return f"sql {self.url} {what}".rstrip()

    @property
    def marks_fields(self) -> bool:  # type: ignore[override]
        """Return whether changed rows are detected: by an SQLite file, or `version_column`."""
        return self._file is not None or self.version_column is not None

    def read_paths(self) -> list[str]:
        """Return the file of an SQLite database."""
        return [] if self._file is None else [self._file]

    def mark(self) -> Any:
        """Return size and time of an SQLite file, or the state of a server's table by `mark_of`."""
        if self._file is not None:
            try:
                return change_mark(self._file)
            except OSError as error:
                raise ValueError(f"{self}: {error.strerror}; set dataset.storage.url") from error
        with self._asking() as server:
            return mark_of(server, self._find(server)[0], self.version_column)

    def scan(self) -> Table:
        """List all rows in the order of their keys: keys, labels, and sizes of images."""
        with self._asking() as server:
            rows, roles = self._find(server)
            kinds, in_row = find_kinds(server, rows, roles, self.types, where=str(self))
            listed = self._list(server, rows, roles, in_row=in_row)
            warn_of_scans(server, rows, len(listed.keys), where=str(self))
        if not listed.keys:
            raise ValueError(f"{self}: the table is empty; nothing to read")
        columns: dict[str, NDArray[Any]] = {}
        if listed.sizes:  # -1: no image
            sizes = [-1 if size is None else size for size in listed.sizes]
            columns["size_bytes"] = np.array(sizes, np.int64)
        class_names = None
        if roles.label is not None:
            where = f"{self}: column {roles.label!r}"
            columns["label"], class_names = label_ids(listed.labels, self.classes, where=where)
        metadata = {
            "table": rows.table,
            "key": rows.key,
            "key_type": listed.key_type,
            "label": roles.label,
            "image": roles.image,
            "fields": kinds,
        }
        content = repr(sorted(kinds.items()))
        return Table(listed.keys, columns, class_names, metadata, content=content)

    def learn(self, metadata: dict[str, Any]) -> None:
        """Store the statement's columns and their kinds."""
        self._layout = metadata

    def open(self) -> Server:
        """Return the server; connections open on demand."""
        return Server(self._url, timeout_s=self.timeout_s, patient=True)

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read rows and their images; a damaged, missing or changed row is a bad record.

        Raises:
            OSError: An error of the server, or of the disk of the images, persisted.
            ExplainedError: The server refuses to read the rows.
        """
        indices = np.asarray(indices, np.int64)
        keys = self.index.raw_keys(indices)
        found = self.rows(sorted(set(keys)))
        return self.made(indices, [found.get(key) for key in keys])

    def made(self, indices: NDArray[np.int64], rows: Sequence[Row]) -> list[Record | BadRecord]:
        """Make the records at `indices`, int64 [n], from n rows."""
        known: list[list[Any]] = [[None] * len(indices)] * 2
        for n, name in enumerate(("label", "size_bytes")):
            if name in self.index.columns:
                known[n] = self.index.values(name, indices).tolist()
        return self.records(indices, map(self._fields, rows, *known))

    def rows(self, keys: Sequence[bytes]) -> dict[bytes, Row]:
        """Read rows by their keys; an unreadable row is a line with the reason."""
        import sqlalchemy as sql

        found: dict[bytes, Row] = {}
        column: Any = sql.column(self._layout["key"])
        kind = self._layout["key_type"]
        wanted = sql.bindparam("keys", expanding=True, type_=sql.types.NULLTYPE)
        statement = self._statement().where(column.in_(wanted))
        left = [keys[n : n + _BATCH_ROWS] for n in range(0, len(keys), _BATCH_ROWS)]
        with self._refused():
            while left:
                some = left.pop()
                try:
                    rows = self.opened.rows(statement, keys=[key_value(k, kind) for k in some])
                    found |= {key_bytes(row[0])[0]: row for row in rows}
                except RecordError as error:
                    middle = len(some) // 2
                    left += [some[:middle], some[middle:]] if middle else []
                    if not middle:
                        found[some[0]] = str(error)
        return found

    def _statement(self) -> Any:
        """Return the statement that selects the columns of records, the key first."""
        layout = self._layout
        more = [name for name in (layout["label"], layout["image"]) if name is not None]
        return select_from(layout["table"], self.query, layout["key"], *more, *layout["fields"])

    def _fields(self, row: Row, label: int | None, size_bytes: int | None) -> dict[str, Any] | str:
        """Make the fields of a row, or return the reason for a bad record."""
        if row is None or isinstance(row, str):
            return row or "its row is gone"
        if size_bytes is not None and size_bytes > self.max_record_bytes:
            return too_large(size_bytes, self.max_record_bytes)
        layout, fields = self._layout, dict[str, Any]()
        name, values = "", iter(row[1:])
        try:
            if (name := layout["label"]) is not None:
                now, names = _name_of(plain(next(values))), self.index.class_names
                if names is None or label is None or names[label] != now:
                    raise ValueError(f"is {now!r:.100}, {_CHANGED}")
            if (name := layout["image"]) is not None:
                value = plain(next(values))
                found_bytes = len(value) if isinstance(value, bytes) else -1
                if size_bytes is not None and found_bytes != size_bytes:
                    raise ValueError(f"had {max(size_bytes, 0):,} bytes, {_CHANGED}")
                name = ""
                fields["image"] = image_bytes(
                    value,
                    self.root,
                    follow_symlinks=self.follow_symlinks,
                    max_bytes=self.max_record_bytes,
                )
            for (name, kind), value in zip(layout["fields"].items(), values, strict=True):
                fields[name] = convert(value, kind)
        except (ValueError, MissingFile) as error:
            return f"column {name!r} {error}" if name else str(error)
        return fields

    @contextlib.contextmanager
    def _refused(self) -> Iterator[None]:
        """Raise a refused statement as an error of the run, not of a row."""
        try:
            yield
        except BadStatement as error:
            raise ExplainedError(
                f"{self}: the database says: {error}; the table, or the right to read it, is not "
                f"what it was when the run began"
            ) from error

    @contextlib.contextmanager
    def _asking(self) -> Iterator[Server]:
        """Open a server before reading; convert its refusals to a ValueError of one line."""
        try:
            server = Server(self._url, timeout_s=self.timeout_s, patient=False)
            with contextlib.closing(server):
                yield server
        except (BadStatement, RecordError) as error:
            raise ValueError(f"{self}: {error}") from error

    def _find(self, server: Server) -> tuple[Rows, ColumnRoles]:
        """Find the rows, and the roles of their columns."""
        rows = find_rows(server, self.table, self.query, self.key_column, where=str(self))
        try:
            roles = find_roles(
                rows,
                image_column=self.image_column,
                label_column=self.label_column,
                columns=self.columns,
                types=self.types,
            )
        except ValueError as error:
            raise ValueError(f"{self}: {error}") from error
        if self.version_column not in (None, *rows.columns):
            known = ", ".join(rows.columns)
            raise ValueError(f"{self}: no column {self.version_column!r}; columns: {known}")
        return rows, roles

    def _list(self, server: Server, rows: Rows, roles: ColumnRoles, *, in_row: bool) -> Listed:
        """List the rows; `in_row`: images are bytes in the rows, not paths."""
        import sqlalchemy as sql

        about_image: Any = sql.null() if roles.image is None else sql.column(roles.image)
        if in_row:
            about_image = sql.func.length(about_image)  # in bytes
        label = sql.null() if roles.label is None else roles.label
        statement = rows.select(rows.key, label, about_image)
        keys, labels, sizes = list[bytes](), list[Any](), list[int | None]()
        key_type = 0
        try:
            for page in server.in_order(statement, sql.column(rows.key), page_rows=_SCAN_ROWS):
                for value, label, image in page:
                    key, kind = key_bytes(value)
                    if keys and kind != key_type:  # as in SQLite's columns
                        raise ValueError(
                            f"the key is {value!r:.50}, of another type than those before; give a "
                            f"query that casts them all to one"
                        )
                    key_type = kind
                    if in_row:
                        sizes.append(image)
                    elif isinstance(image, str):
                        refuse_escape(image, self.root)
                    if roles.label is not None:  # equal texts share memory
                        text = isinstance(label, str)
                        labels.append(sys.intern(label) if text else plain(label))
                    keys.append(key)
        except RecordError:
            raise
        except ValueError as error:
            raise ValueError(f"{self}: record {len(keys)}: {error}") from None
        return Listed(keys, labels, sizes, key_type)


def _name_of(label: Any) -> str | None:
    """Return the class name of a label, as `label_ids` does."""
    return label if label is None or isinstance(label, str) else str(int(label))
