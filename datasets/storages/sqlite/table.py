"""Look into a table, view or query of an SQLite file: its rows' places, keys and types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.core.json_text import parse_json
from penstock.datasets.columnar.names import ColumnRoles
from penstock.datasets.columnar.record_columns import restore
from penstock.datasets.columnar.rows import key_bytes, key_value
from penstock.datasets.files.data_files import refuse_escape
from penstock.datasets.records.labels import refuse_twice
from penstock.datasets.storages.sqlite.database import BadQuery, BadText, Database

Kind = Literal["int", "float", "str", "value", "array", "json"]
"""Types that a column's values become; ``value``: as they are."""


def find_kind(types: set[str]) -> Kind:
    """Choose what values of these types become, as in a CSV file.

    Numbers stay numbers where all are, and whole if none is missing; numbers among texts are text.
    """
    if types == {"integer"}:
        return "int"
    if types - {"null"} and types <= {"integer", "real", "null"}:
        return "float"
    if "text" in types and "blob" not in types:
        return "str"
    return "value"


def convert(value: Any, kind: Kind) -> Any:
    """Convert a field's value: a missing one is NaN among numbers, else None.

    Raises:
        ValueError: It cannot be one of its kind.
    """
    if isinstance(value, BadText):
        raise ValueError("is no UTF-8")
    if kind == "float" and not isinstance(value, str | bytes):
        return float("nan") if value is None else float(value)
    if value is None and kind != "int":
        return None
    if kind == "array" and not isinstance(value, bytes):
        raise ValueError(f"is {value!r:.50}, expected the bytes of a .npy file")
    if kind in ("array", "json"):
        return restore(value, "npy" if kind == "array" else "json")
    if kind == "str" and isinstance(value, int | float):
        return str(value)
    if kind in ("int", "float") and type(value) is not int:
        raise ValueError(f"is {value!r:.50}, and was a number when the index was made")
    return value


def key_place(value: Any) -> tuple[bytes, int]:
    """Encode a key as bytes, and its type for `placed`; see `key_bytes`."""
    return (bytes(value), _BAD_TEXT) if isinstance(value, BadText) else key_bytes(value)


def placed(key: bytes, kind: int) -> tuple[str, Any]:
    """A key as SQL and the value that stands for the question mark in it."""
    if kind == _BAD_TEXT:  # which cannot be given as a text
        return "CAST(? AS TEXT)", key
    return "?", key_value(key, kind)


# Processor time that a look at a whole file may take, and the reading of some rows.
READ_LIMIT_S = 30.0
_BYTES_PER_S = 10_000_000
LAYOUT = "penstock"
"""The table of a packed file that says what its records are."""
_BAD_TEXT = 3  # of the types of keys, beside those of `key_bytes`
_ROWID_NAMES = ("rowid", "_rowid_", "oid")


@dataclass(frozen=True, slots=True)
class Source:
    """A table, view or query that rows are read from.

    Attributes:
        sql: What stands behind FROM.
        columns: Names of its columns.
        place: What a row is found by, as SQL.
        key: The column of the keys, if these are what a row is found by; None: it is found by the
            number that SQLite gives every row of a table.
    """

    sql: str
    columns: tuple[str, ...]
    place: str
    key: str | None

    @property
    def by_rowid(self) -> bool:
        """Whether rows are found by their numbers."""
        return self.key is None


@dataclass(slots=True)
class Scan:
    """Findings of a look at all rows, without the images.

    Attributes:
        places: The number of every row; empty where the key finds it.
        keys: Its key as bytes.
        key_types: What the keys are in the file.
        labels: Its label; empty without a label column.
        image_bytes: How large its image is; None where there is a path.
        kinds: What the values of every field become.
    """

    places: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    key_types: list[int] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    image_bytes: list[int | None] = field(default_factory=list)
    kinds: dict[str, Kind] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Layout of a packed file.

    Attributes:
        kinds: What every column holds, by name; see `datasets.columnar.record_columns`.
        class_names: Class names by id, or None.
    """

    kinds: dict[str, Any]
    class_names: tuple[str, ...] | None

    @property
    def roles(self) -> ColumnRoles:
        """Roles of its columns."""
        names = tuple(self.kinds)
        image = "image" if self.kinds.get("image") == "file" else None
        fields = tuple(name for name in names if name not in ("key", "label", image))
        places = {name: place for place, name in enumerate(names)}
        return ColumnRoles(places, image, "label" if "label" in names else None, "key", fields)


def read_layout(database: Database) -> PackedLayout | None:
    """Read the layout of a packed file; None for a file of others.

    Raises:
        DamagedDatabase: See `Database.iterate`.
    """
    try:
        sql = f"SELECT value FROM {LAYOUT} WHERE name = 'layout'"
        [(text,)] = database.rows(sql, limit_s=READ_LIMIT_S)
        about = parse_json(text)
        classes = about["classes"]
        return PackedLayout(dict(about["kinds"]), None if classes is None else tuple(classes))
    except (BadQuery, ValueError, KeyError, TypeError):
        return None


def quoted(name: str) -> str:
    """Quote a name for SQL."""
    return '"' + name.replace('"', '""') + '"'


def find_source(
    database: Database, table: str | None, query: str | None, key: str | None, *, where: str
) -> Source:
    """Find the table, view or query that is meant.

    Args:
        database: The file.
        table: Its name; None: the only one.
        query: One SELECT in its place.
        key: The column of the keys; None: ``key``, if there is one.
        where: The storage, for messages.

    Raises:
        ValueError: It is not there, or its rows cannot be found again.
        BadQuery, DamagedDatabase: See `Database.iterate`.
    """
    if query is not None:
        # On a line of its own, because a query may end with a comment.
        sql = f"({query.strip().rstrip(';')}\n)"
        return _by_key(sql, database.columns(sql), key, "a query", where=where)
    about = (
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE "
        "'sqlite\\_%' ESCAPE '\\' AND name <> ? ORDER BY name"
    )
    names = [name for (name,) in database.rows(about, (LAYOUT,), limit_s=READ_LIMIT_S)]
    known = ", ".join(map(repr, names)) or "none"
    if table is None and len(names) != 1:
        raise ValueError(f"{where}: tables: {known}; name one: dataset.storage.table")
    table = table or names[0]
    if table.lower() not in [str(name).lower() for name in names]:
        raise ValueError(f"{where}: no table {table!r}; tables: {known}")
    sql = quoted(table)
    columns = database.columns(sql)
    place = _row_number(database, table, columns)
    if place is not None:
        return Source(sql, tuple(columns), place, None)
    if key is None and "key" not in columns:
        described = database.rows(f"PRAGMA table_info({sql})", limit_s=READ_LIMIT_S)
        primary = [row[1] for row in described if row[5]]
        key = primary[0] if len(primary) == 1 else None
    return _by_key(sql, columns, key, f"the table or view {table!r}", where=where)


def _row_number(database: Database, table: str, columns: Sequence[str]) -> str | None:
    """Find the name of the number that every row of a table has, or None where they have none."""
    taken = {column.lower() for column in columns}
    name = next((name for name in _ROWID_NAMES if name not in taken), None)
    about = "SELECT type FROM sqlite_master WHERE lower(name) = lower(?) AND type <> 'index'"
    # Some versions give the rows of a view such a number, which is NULL.
    if name is None or database.rows(about, (table,), limit_s=READ_LIMIT_S) != [("table",)]:
        return None
    try:
        database.rows(f"SELECT {name} FROM {quoted(table)} LIMIT 0", limit_s=READ_LIMIT_S)
    except BadQuery:  # WITHOUT ROWID
        return None
    return name


def _by_key(sql: str, columns: Sequence[str], key: str | None, what: str, *, where: str) -> Source:
    if key is None and "key" in columns:
        key = "key"
    if key is None:
        raise ValueError(
            f"{where}: the rows of {what} have no numbers to find them by; name a column whose "
            f"values differ: dataset.storage.key_column, of {', '.join(columns)}"
        )
    if key not in columns:
        raise ValueError(f"{where}: no column {key!r}; columns: {', '.join(columns)}")
    return Source(sql, tuple(columns), quoted(key), key)


def scan(
    database: Database,
    source: Source,
    roles: ColumnRoles,
    types: Mapping[str, Kind],
    *,
    size_bytes: int,
    root: str,
    where: str,
) -> Scan:
    """Look at all rows once, but not at their images and other bytes.

    Args:
        database: The file.
        source: What is read.
        roles: What its columns become.
        types: What columns hold of which that is known.
        size_bytes: The size of the file.
        root: The folder of images in files.
        where: The storage, for messages.

    Raises:
        ValueError: No row, a key that is none or stands twice, or a path that leads out of its
            folder.
    """
    wanted = [
        source.place,
        source.place if roles.key is None else quoted(roles.key),
        "NULL" if roles.label is None else quoted(roles.label),
        *_image_columns(roles.image),
        *("NULL" if name in types else f"typeof({quoted(name)})" for name in roles.fields),
    ]
    order = f" ORDER BY {source.place}" if source.by_rowid else ""
    sql = f"SELECT {', '.join(wanted)} FROM {source.sql}{order}"
    found = Scan()
    seen: list[set[str]] = [set() for _ in roles.fields]
    for rows in database.iterate(sql, limit_s=READ_LIMIT_S + size_bytes / _BYTES_PER_S):
        for row in rows:
            try:
                _add(found, row, source, roles, root)
            except ValueError as error:
                raise ValueError(f"{where}: record {len(found.keys)}: {error}") from None
            for types_found, name in zip(seen, row[5:], strict=True):
                types_found.add(name)
    if not found.keys:
        raise ValueError(f"{where}: it has no row; nothing to read")
    key = "" if roles.key is None else f": key_column {roles.key!r}"
    refuse_twice(found.keys, where=where + key)
    for name, types_found in zip(roles.fields, seen, strict=True):
        found.kinds[name] = types.get(name) or find_kind(types_found)
    return found


def _add(found: Scan, row: Sequence[Any], source: Source, roles: ColumnRoles, root: str) -> None:
    """Take one row: place, key, label, bytes of its image, path of its image, types."""
    place, key, label, image_bytes, image_path, *_ = row
    if source.by_rowid:
        if found.places and place <= found.places[-1]:
            raise ValueError(f"the file is damaged: row {place} comes behind {found.places[-1]}")
        found.places.append(place)
    if isinstance(image_path, str):
        refuse_escape(image_path, root)
    text, key_type = key_place(key)
    found.image_bytes.append(image_bytes)
    found.key_types.append(key_type)
    if roles.label is not None:
        found.labels.append(label)
    found.keys.append(text)


def _image_columns(image: str | None) -> list[str]:
    """Select the size of an image's bytes, or the path of its file, in SQL."""
    if image is None:
        return ["NULL", "NULL"]
    name = quoted(image)
    return [
        f"CASE typeof({name}) WHEN 'blob' THEN length({name}) END",
        f"CASE typeof({name}) WHEN 'text' THEN {name} END",
    ]
