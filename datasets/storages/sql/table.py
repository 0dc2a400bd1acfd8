"""Inspect a table, view or query of a server: its columns, its key, the types of its values."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from penstock.core.json_text import parse_json
from penstock.datasets.columnar.record_columns import restore
from penstock.datasets.records.labels import column_ids
from penstock.datasets.storages.sql.server import Server

if TYPE_CHECKING:
    from sqlalchemy import Connection, Select

_log = logging.getLogger(__name__)

FieldType = Literal["array", "json"]
"""Content of a column of bytes or texts."""

Kind = Literal["float", "whole", "text", "value", "array", "json"]
"""Types that a column's values become.

``whole`` is an integer or bool column without nulls, ``value`` any other as `plain` returns it.
"""

_IMAGE_COLUMNS = ("image", "file_name", "filename", "path")
_RESERVED = ("index", "key", "position")
_MANY_ROWS = 100_000
_ROW_NUMBER = "rowid"
# A sample value by SQLite's typeof(), of which `max` returns the alphabetically last.
_VALUES_OF: dict[str | None, Any] = {"text": "", "real": 0.0, "integer": 0, "blob": b"", None: None}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)


def plain(value: Any) -> Any:
    """Convert a driver's value to a number, text, bytes, list, array or dict.

    Times become integers since 1970 or midnight, as in other tables: microseconds, and days for
    dates. Lists of numbers become arrays.

    Raises:
        ValueError: The value has another type.
    """
    match value:
        case None | bool() | int() | float() | str() | bytes() | dict():
            return value
        case Decimal():
            return float(value)
        case datetime():
            return ((value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH) // _US
        case date():
            return (value - _EPOCH.date()).days
        case time():
            since = timedelta(hours=value.hour, minutes=value.minute, seconds=value.second)
            return since // _US + value.microsecond
        case timedelta():
            return value // _US
        case UUID():
            return str(value)
        case memoryview() | bytearray():
            return bytes(value)
        case list():
            numbers = all(isinstance(item, int | float) for item in value)
            return np.array(value) if value and numbers else value
    raise ValueError(
        f"is of the type {type(value).__name__}, which no field can be; cast it in a query, or "
        f"leave it out by dataset.storage.columns"
    )


def key_bytes(value: Any) -> tuple[bytes, int]:
    """Encode a key as bytes; return them with the key's type for `key_value`.

    Raises:
        ValueError: The key is missing, or a float.
    """
    if isinstance(value, UUID | memoryview | bytearray):
        value = plain(value)
    if isinstance(value, str):
        return value.encode(), 1
    if isinstance(value, bytes):
        return value, 2
    if isinstance(value, int):
        return b"%d" % value, 0
    what = "missing" if value is None else f"{value!r:.100}"
    raise ValueError(
        f"the key is {what}, expected a text, bytes or a whole number; fill it in, or take "
        f"another column"
    )


def key_value(key: bytes, kind: int) -> int | str | bytes:
    """Decode a key of `key_bytes`."""
    return int(key) if kind == 0 else key.decode() if kind == 1 else key


def label_ids(
    labels: Sequence[Any], classes: Sequence[str] | None, *, where: str
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Return the class ids of a column of integers or texts; see `column_ids`.

    Raises:
        ValueError: A label is missing, or its type differs from the first.
    """
    kind = int if isinstance(labels[0], int) else str
    for n, label in enumerate(labels):
        if not isinstance(label, kind):
            what = "missing" if label is None else f"{label!r:.50}"
            raise ValueError(
                f"{where}: the label of record {n} is {what}, expected whole numbers or texts, the "
                f"same in every row; fill it in, or leave such rows out by a query"
            )
    return column_ids(np.array(labels) if kind is int else labels, classes=classes, where=where)


def convert(value: Any, kind: Kind) -> Any:
    """Convert a field's value; a null becomes NaN among numbers, else None.

    Raises:
        ValueError: The value does not fit the kind.
    """
    if kind == "json" and not isinstance(value, str):  # some drivers decode JSON
        return value
    value = plain(value)
    if kind == "whole" and not isinstance(value, int):
        raise ValueError(f"is {value!r:.50} now, and held whole numbers alone when it was listed")
    if value is None:
        return float("nan") if kind == "float" else None
    if kind == "float":
        return float(value)
    if kind == "text" and isinstance(value, int | float):
        return str(value)
    if kind == "array":
        if not isinstance(value, bytes):
            raise ValueError(f"is {value!r:.50}, expected the bytes of a .npy file")
        return restore(value, "npy")
    return parse_json(value) if kind == "json" else value


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a table or query, and their columns.

    Attributes:
        table: The table or view; None for a query.
        query: One SELECT in place of `table`.
        key: The column of the keys.
    """

    table: str | None
    query: str | None
    columns: tuple[str, ...]
    key: str

    def select(self, *wanted: Any) -> Select[Any]:
        """Return the statement that reads columns, given by name or as SQL."""
        return select_from(self.table, self.query, *wanted)


@dataclass(frozen=True, slots=True)
class ColumnRoles:
    """Columns by their roles; `fields` become fields of their names."""

    image: str | None
    label: str | None
    fields: tuple[str, ...]


def find_roles(
    rows: Rows,
    *,
    image_column: str | None,
    label_column: str | None,
    columns: Sequence[str] | None,
    types: Mapping[str, FieldType],
) -> ColumnRoles:
    """Find the roles of columns by their names; see `SqlStorage` for the arguments.

    Raises:
        ValueError: A column is missing, or has a reserved name.
    """
    names = rows.columns
    for wanted in (image_column, label_column, *(columns or ())):
        if wanted and wanted not in names:
            raise ValueError(f"no column {wanted!r}; columns: {', '.join(names)}")
    image = image_column or next((name for name in _IMAGE_COLUMNS if name in names), None)
    label = "label" if label_column is None and "label" in names else label_column or None
    taken = names if columns is None else columns
    fields = tuple(name for name in taken if name not in (image, label, rows.key))
    for name in fields:
        if name in _RESERVED or (name == "image" and image) or (name == "label" and label):
            raise ValueError(
                f"column {name!r} has a name that samples use for something else; leave "
                f"it out by dataset.storage.columns, or type dataset.storage.key_column={name}"
            )
    if unknown := [name for name in types if name not in fields]:
        raise ValueError(f"types: no field {unknown[0]!r}; fields: {', '.join(fields) or 'none'}")
    return ColumnRoles(image, label, fields)


def select_from(table: str | None, query: str | None, *wanted: Any) -> Select[Any]:
    """Return the statement that reads columns of a table or query, given by name or as SQL."""
    import sqlalchemy as sql

    columns = [sql.column(each) if isinstance(each, str) else each for each in wanted]
    if query is not None:
        # On its own line, because a query may end with a comment. Colons are escaped.
        text = query.strip().rstrip(";").replace(":", "\\:")
        return sql.select(*columns).select_from(sql.text(f"({text}\n) AS penstock_rows"))
    schema, _, name = str(table).rpartition(".")
    return sql.select(*columns).select_from(sql.table(name, schema=schema or None))


def find_rows(
    server: Server, table: str | None, query: str | None, key: str | None, *, where: str
) -> Rows:
    """Find the table, view or query, and the column that identifies its rows.

    Args:
        server: The database.
        table: Its name, or ``schema.name``; None: the only table.
        query: One SELECT in place of `table`.
        key: The column of the keys; None: ``key``, the primary key, or SQLite's row numbers.
        where: The storage, for messages.

    Raises:
        ValueError: It is missing, or no column identifies its rows.
        BadStatement, OSError: See `Server.rows`.
    """
    import sqlalchemy as sql

    primary: Sequence[str] = ()
    if query is None:
        table, primary = server.call(lambda at: _find_table(at, table, where=where))
    none = select_from(table, query, sql.text("*")).where(sql.false())
    columns = tuple(server.call(lambda connection: tuple(connection.execute(none).keys())))
    if key is None and "key" in columns:
        key = "key"
    if key is None and len(primary) == 1:
        key = primary[0]
    if key is None:
        what = "a query" if query is not None else f"the table or view {table!r}"
        many = f" (its primary key has {len(primary)} columns)" if primary else ""
        raise ValueError(
            f"{where}: the rows of {what} have nothing to find them by{many}; name a column whose "
            f"values differ: dataset.storage.key_column, of {', '.join(columns)}"
        )
    if key not in (*columns, *primary):
        raise ValueError(f"{where}: no column {key!r}; columns: {', '.join(columns)}")
    return Rows(table, query, columns, key)


def _find_table(
    connection: Connection, table: str | None, *, where: str
) -> tuple[str, Sequence[str]]:
    """Find a table by its name, and the columns of its primary key."""
    import sqlalchemy as sql

    inspector = sql.inspect(connection)
    schema, _, name = str(table).rpartition(".")
    if table is None or not inspector.has_table(name, schema or None):
        above = schema if schema in inspector.get_schema_names() else None
        names = sorted({*inspector.get_table_names(above), *inspector.get_view_names(above)})
        names = [f"{above}.{each}" if above else each for each in names]
        known = ", ".join(map(repr, names[:20])) or "none"
        if table is not None:
            near = get_close_matches(table, names, n=1)
            hint = f"; type dataset.storage.table={near[0]}" if near else ""
            raise ValueError(f"{where}: no table {table!r}; tables: {known}{hint}")
        if len(names) != 1:
            raise ValueError(f"{where}: tables: {known}; name one: dataset.storage.table")
        table, schema, name = names[0], "", names[0]
    primary = inspector.get_pk_constraint(name, schema or None)["constrained_columns"]
    if connection.dialect.name == "sqlite" and len(primary) != 1:
        with contextlib.suppress(sql.exc.DBAPIError):  # WITHOUT ROWID
            if name in inspector.get_table_names():
                connection.execute(
                    sql.select(sql.column(_ROW_NUMBER)).select_from(sql.table(name)).limit(0)
                )
                primary = [_ROW_NUMBER]
    return table, primary


def warn_of_scans(server: Server, rows: Rows, count: int, *, where: str) -> None:
    """Log that a large table lacks an index of its keys: every batch then scans the table."""
    import sqlalchemy as sql

    if rows.table is None or rows.key == _ROW_NUMBER or count < _MANY_ROWS:
        return
    schema, _, name = rows.table.rpartition(".")
    above = schema or None

    def first_columns(connection: Connection) -> list[Any]:
        inspector = sql.inspect(connection)
        if name not in inspector.get_table_names(above):
            return [rows.key]  # a view
        indexes = [*inspector.get_indexes(name, above)]
        unique = [*inspector.get_unique_constraints(name, above)]
        columns: list[Any] = [index["column_names"] for index in (*indexes, *unique)]
        columns += [inspector.get_pk_constraint(name, above)["constrained_columns"]]
        return [each[0] for each in columns if each]

    if rows.key not in server.call(first_columns):
        _log.warning(
            "%s: the key %r lacks an index, and each batch scans all %s rows; type "
            "CREATE INDEX penstock_key ON %s (%s) in the database, or take another "
            "dataset.storage.key_column", where, rows.key, f"{count:,}", rows.table, rows.key,
        )  # fmt: skip


def mark_of(server: Server, rows: Rows, version_column: str | None) -> list[Any]:
    """Return the state of the rows: count, first and last key, version, columns, table identity."""
    import sqlalchemy as sql

    def end(name: str, direction: Any) -> Any:
        column: Any = sql.column(name)
        ordered = rows.select(name).where(column.is_not(None)).order_by(direction(column))
        return ordered.limit(1).scalar_subquery().correlate(None)

    wanted = [sql.func.count(), end(rows.key, sql.asc), end(rows.key, sql.desc)]
    if version_column is not None:
        wanted.append(end(version_column, sql.desc))
    [(count, *ends)] = server.rows(rows.select(*wanted))
    made = None
    if rows.table is not None:
        made = server.call(lambda connection: _made_as(connection, str(rows.table)))
    return [count, *map(str, ends), list(rows.columns), str(made)]


def _made_as(connection: Connection, table: str) -> Any:
    """Return the identity of a table, which differs once it is recreated or refilled."""
    import sqlalchemy as sql

    schema, _, name = table.rpartition(".")
    if connection.dialect.name == "postgresql":
        prepare = connection.dialect.identifier_preparer
        values = {"name": prepare.format_table(sql.table(name, schema=schema or None))}
        text = "SELECT pg_relation_filenode(to_regclass(:name))"
    else:
        values = {"name": name, "schema": schema}
        text = (
            "SELECT create_time FROM information_schema.tables WHERE table_name = :name AND "
            "table_schema = CASE :schema WHEN '' THEN database() ELSE :schema END"
        )
    return connection.execute(sql.text(text), values).scalar()


def find_kinds(
    server: Server, rows: Rows, roles: ColumnRoles, types: Mapping[str, FieldType], *, where: str
) -> tuple[dict[str, Kind], bool]:
    """Return the kinds of the fields, and whether images are bytes in the rows rather than paths.

    Raises:
        ValueError: A key is missing, or a column has values of another type.
    """
    import sqlalchemy as sql

    def seen(name: str) -> Any:
        column: Any = sql.column(name)
        if server.file is None:
            return column
        return sql.func.nullif(sql.func.typeof(column), "null")  # without reading large values

    names = [*roles.fields, *([] if roles.image is None else [roles.image])]
    numbers = [sql.func.count(), *(sql.func.count(seen(n)) for n in (rows.key, *names))]
    [(count, keyed, *counts)] = server.rows(rows.select(*numbers))
    if keyed < count:
        raise ValueError(
            f"{where}: the key is missing in {count - keyed:,} of {count:,} rows: column "
            f"{rows.key!r}; fill it in, or take another by dataset.storage.key_column"
        )
    if server.file is not None and names:  # values of one column may differ in type
        [tops] = server.rows(rows.select(*(sql.func.max(seen(n)) for n in names)))
        values = [_VALUES_OF[top] for top in tops]
    else:
        values = [_one_of(server, rows, name) for name in names]
    kinds: dict[str, Kind] = {}
    in_row = False
    for name, found, value in zip(names, counts, values, strict=True):
        if name in types:
            kinds[name] = types[name]
            continue
        try:
            shown = plain(value)
        except ValueError as error:
            raise ValueError(f"{where}: column {name!r} {error}") from None
        if name == roles.image:
            in_row = isinstance(shown, bytes)
        else:
            kinds[name] = _kind_of(shown, nulls=found < count)
    return kinds, in_row


def _kind_of(value: Any, *, nulls: bool) -> Kind:
    """Return the kind of a column, from a value of its widest type and whether it has nulls."""
    if isinstance(value, int | float):
        return "float" if nulls or isinstance(value, float) else "whole"
    return "text" if isinstance(value, str) else "value"


def _one_of(server: Server, rows: Rows, name: str) -> Any:
    """Read one value of a column; None if all are null."""
    import sqlalchemy as sql

    column: Any = sql.column(name)
    found = server.rows(rows.select(name).where(column.is_not(None)).limit(1))
    return found[0][0] if found else None
