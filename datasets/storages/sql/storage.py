"""Read records in the rows of a database, by their keys."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Gt
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record, RecordError
from penstock.core.user_errors import ExplainedError
from penstock.datasets.columnar.images import check_fields, image_bytes
from penstock.datasets.files.access import MissingFile
from penstock.datasets.files.passwords import from_environment
from penstock.datasets.records.indexed_storage import IndexedStorage, file_mark
from penstock.datasets.records.labels import refuse_twice
from penstock.datasets.records.table import Table
from penstock.datasets.storages.sql.server import Server, file_of, parse_url, shown
from penstock.datasets.storages.sql.values import (
    Kind,
    convert,
    key_bytes,
    key_value,
    kind_of,
    label_ids,
    plain,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection, Select

Row = tuple[Any, ...] | str | None  # a row, or why it cannot be read; None: it is missing

_BATCH_ROWS = 256
_IMAGE_COLUMNS = ("image", "file_name", "filename", "path")
# A sample value by SQLite's typeof(), of which `max` returns the alphabetically last.
_VALUES_OF: dict[str | None, Any] = {"text": "", "real": 0.0, "integer": 0, "blob": b"", None: None}


@register("storage", "sql")
class SqlStorage(IndexedStorage):
    """Rows of a database: PostgreSQL, MariaDB, MySQL or SQLite, a table, view or query.

    Each start lists the keys and labels of all rows, in the order of the keys. Rows are read by
    key, so the key column should have an index.

    Args:
        url: ``postgresql://user@host/database``, ``mariadb://...``, ``mysql://...`` or
            ``sqlite:///file.db``; ``env:NAME`` reads it from the environment.
        table: A table or view, or ``schema.table``; None: the only table.
        query: One SELECT in place of `table`.
        image_column: The column of images or their paths; None: the first of ``image``,
            ``file_name``, ``filename`` and ``path``.
        label_column: The column of class ids or names; None: ``label``; an empty text: no labels.
        key_column: The column of the keys; None: ``key``, else the primary key, else row numbers.
        columns: The other columns to read; None: all.
        root: The folder of image paths, which these may not leave (``/`` allows absolute paths);
            None: the working directory, or the folder of the SQLite file.
        classes: Class names by id; None: the classes found, sorted.
        timeout_s: Maximum seconds of a statement of a server.
    """

    name = "sql"
    reading_arguments = ("root", "timeout_s")
    index_version = 5
    _listed: Table | None = None

    def __init__(
        self,
        url: str,
        *,
        table: str | None = None,
        query: str | None = None,
        image_column: str | None = None,
        label_column: str | None = None,
        key_column: str | None = None,
        columns: list[str] | None = None,
        root: str | None = None,
        classes: list[str] | None = None,
        timeout_s: Annotated[float, Gt(0)] = 30.0,
    ) -> None:
        self._url = parse_url(from_environment(url, setting="dataset.storage.url"))
        self._file = file_of(self._url)
        self.table = table
        self.query = query
        self.image_column = image_column
        self.label_column = label_column
        self.key_column = key_column
        self.columns = columns
        self.root = os.path.abspath(root or os.path.dirname(self._file or "") or os.curdir)
        self.classes = classes
        self.timeout_s = timeout_s
        self.path = f"{shown(self._url)} {table or ('by a query' if query else '')}".rstrip()
        self.paths = () if self._file is None else (self._file,)
        self.marks_fields = self._file is not None  # a server's may change unnoticed

    def mark(self) -> Any:
        """Return the states of an SQLite file and its log, or a hash of a server's listed rows."""
        if self._file is not None:
            files = (self._file, f"{self._file}-wal")
            return [file_mark(f) for f in files if os.path.exists(f) and os.path.getsize(f)]
        self._listed = self._list()
        return self._listed.fingerprint()

    def scan(self) -> Table:
        return self._listed or self._list()

    def _list(self) -> Table:
        """List all rows in the order of their keys: keys and labels."""
        import sqlalchemy as sql

        keys, labels, key_type = list[bytes](), list[Any](), ""
        try:
            with contextlib.closing(Server(self._url, self.timeout_s, patient=False)) as server:
                found = server.call(self._find)
                kinds = self._kinds(server, found)
                label = found["label"] or sql.null()
                listed = self._select(found["table"], found["key"], label)
                for value, name in server.rows(listed.order_by(sql.column(found["key"]))):
                    key, kind = key_bytes(value)
                    if kind != (key_type := key_type or kind):
                        raise ValueError(f"the keys are {key_type} and {kind}, expected one type")
                    keys.append(key)
                    labels.append(plain(name))
        except ValueError as error:
            raise ValueError(f"{self}: {error}") from error
        if not keys:
            raise ValueError(f"{self}: the table is empty; nothing to read")
        refuse_twice(
            keys,
            where=f"{self}: column {found['key']!r}",
            remedy="take a column whose values differ: dataset.storage.key_column",
        )
        columns, class_names = {}, None
        if found["label"]:
            where = f"{self}: column {found['label']!r}"
            columns["label"], class_names = label_ids(labels, self.classes, where=where)
        metadata = {**found, "key_type": key_type, "kinds": kinds}
        return Table(keys, columns, class_names, metadata, content=repr(sorted(kinds.items())))

    def learn(self, metadata: dict[str, Any]) -> None:
        self._layout, self._listed = metadata, None

    def open(self) -> Server:
        """Return the server; connections open on demand."""
        return Server(self._url, self.timeout_s, patient=True)

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read rows and their images; a damaged or missing row is a bad record."""
        keys = self.index.raw_keys(indices)
        found = self._rows(sorted(set(keys)))
        return self.records(indices, map(self._fields, map(found.get, keys)))

    @property
    def nullable(self) -> list[str]:  # type: ignore[override]
        """Return the fields of integers or times with nulls."""
        len(self.index)
        return [name for name, kind in self._layout["kinds"].items() if kind == "nullable"]

    def _rows(self, keys: Sequence[bytes]) -> dict[bytes, Row]:
        """Read rows by their keys; an unreadable row is a line with the reason."""
        import sqlalchemy as sql

        layout = self._layout
        wanted = sql.bindparam("keys", expanding=True, type_=sql.types.NULLTYPE)
        statement = self._select(layout["table"], layout["key"], *layout["kinds"])
        statement = statement.where(sql.column(layout["key"]).in_(wanted))
        try:
            if len(keys) <= _BATCH_ROWS:
                values = [key_value(key, layout["key_type"]) for key in keys]
                rows = self.opened.rows(statement, keys=values)
                return {key_bytes(row[0])[0]: row[1:] for row in rows}
        except RecordError as error:
            if len(keys) == 1:
                return {keys[0]: str(error)}
        except ValueError as error:
            raise ExplainedError(
                f"{self}: the database says: {error}; the table, or the right to read it, is not "
                f"what it was when the run began"
            ) from error
        half = len(keys) // 2  # finds a damaged row
        return self._rows(keys[:half]) | self._rows(keys[half:])

    def _fields(self, row: Row) -> dict[str, Any] | str:
        """Make the fields of a row, or return the reason for a bad record."""
        if row is None or isinstance(row, str):
            return row or "its row is gone"
        fields, most = dict[str, Any](), self.max_record_bytes
        for (name, kind), value in zip(self._layout["kinds"].items(), row, strict=True):
            try:
                if kind == "image":
                    fields["image"] = image_bytes(plain(value), self.root, max_bytes=most)
                else:
                    fields[name] = convert(value, kind)
            except (ValueError, MissingFile) as error:
                return f"column {name!r} {error}"
        return fields

    def _select(self, table: str | None, *wanted: Any) -> Select[Any]:
        """Return the statement that reads columns, given by name or as SQL."""
        import sqlalchemy as sql

        columns = [sql.column(each) if isinstance(each, str) else each for each in wanted]
        if self.query is not None:
            # On its own line, because a query may end with a comment. Colons are escaped.
            text = self.query.strip().rstrip(";").replace(":", "\\:")
            return sql.select(*columns).select_from(sql.text(f"({text}\n) AS penstock_rows"))
        schema, _, name = str(table).rpartition(".")
        return sql.select(*columns).select_from(sql.table(name, schema=schema or None))

    def _find(self, connection: Connection) -> dict[str, Any]:
        """Find the table, and the names of the columns by role."""
        import sqlalchemy as sql

        table, primary = self.table, list[str]()
        if self.query is None:
            table, primary = _find_table(connection, self.table)
        none = self._select(table, sql.text("*")).where(sql.false())
        names = [*connection.execute(none).keys()]
        known = ", ".join(names)
        key = self.key_column or ("key" if "key" in names else None)
        if key is None and len(primary) != 1:
            raise ValueError(f"no primary key; set dataset.storage.key_column to one of: {known}")
        key = key or primary[0]
        image = self.image_column or next((n for n in _IMAGE_COLUMNS if n in names), None)
        label = self.label_column
        if label is None and "label" in names:
            label = "label"
        taken = names if self.columns is None else self.columns
        for name in filter(None, (key, image, label, *taken)):
            if name not in (*names, *primary):
                raise ValueError(f"no column {name!r}; columns: {known}")
        fields = [name for name in taken if name not in (image, label, key)]
        check_fields(fields, [*(["image"] if image else []), *(["label"] if label else [])])
        return {"table": table, "key": key, "image": image, "label": label, "fields": fields}

    def _kinds(self, server: Server, found: dict[str, Any]) -> dict[str, Kind]:
        """Return the kinds of the image and the fields."""
        import sqlalchemy as sql

        table, names = found["table"], found["fields"]
        kinds: dict[str, Kind] = {found["image"]: "image"} if found["image"] else {}
        columns: list[Any] = list(map(sql.column, names))
        if self._file is not None:  # values of one column may differ in type
            columns = [sql.func.nullif(sql.func.typeof(column), "null") for column in columns]
            samples: list[Any] = list(map(sql.func.max, columns))
        else:
            filled = [self._select(table, c).where(c.is_not(None)).limit(1) for c in columns]
            samples = [each.correlate(None).scalar_subquery() for each in filled]
        counts = [sql.func.count(), *map(sql.func.count, columns)]
        [(count, *row)] = server.rows(self._select(table, *counts, *samples))
        for name, number, value in zip(names, row, row[len(names) :], strict=False):
            if self._file is not None:
                value = _VALUES_OF[value]
            try:
                kinds[name] = kind_of(value, nulls=number < count)
            except ValueError as error:
                raise ValueError(f"column {name!r} {error}") from None
        return kinds


def _find_table(connection: Connection, table: str | None) -> tuple[str, list[str]]:
    """Find a table by its name, and the columns of its primary key."""
    import sqlalchemy as sql

    inspector = sql.inspect(connection)
    schema, _, name = (table or "").rpartition(".")
    if table is None or not inspector.has_table(name, schema or None):
        names = sorted({*inspector.get_table_names(), *inspector.get_view_names()})
        if table is not None or len(names) != 1:
            raise ValueError(
                f"no table {table!r}; set dataset.storage.table to one of: "
                f"{', '.join(map(repr, names[:20])) or 'none'}"
            )
        table = name = names[0]
    primary = inspector.get_pk_constraint(name, schema or None)["constrained_columns"]
    if connection.dialect.name == "sqlite" and len(primary) != 1:
        primary = ["rowid"] if name in inspector.get_table_names() else []
    return table, primary
