"""SQLite files as ``pack`` writes them; tables of other programs are read by ``storages/sql``."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.json_text import parse_json
from penstock.core.parts import PackPlan, Part, PartSummary, Written
from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record
from penstock.datasets.columnar.record_columns import (
    REST,
    FieldColumn,
    Kind,
    plan_columns,
    restore,
    restore_rest,
    split_fields,
)
from penstock.datasets.columnar.rows import label_ids
from penstock.datasets.files.access import MissingFile, retried
from penstock.datasets.files.sqlite_files import (
    BadStatement,
    DamagedRows,
    ReadingConnection,
    change_mark,
    open_to_read,
)
from penstock.datasets.records.index import IndexContent
from penstock.datasets.records.indexed_storage import IndexedStorage
from penstock.datasets.records.labels import refuse_twice

if TYPE_CHECKING:
    import sqlite3

LAYOUT = "penstock"
"""The table that says what the records of the table ``samples`` are."""

_BATCH_ROWS = 256
_READ_LIMIT_S = 30.0  # of processor time
_ENDINGS = (".sqlite", ".sqlite3", ".db")


@register("storage", "sqlite")
class SqliteStorage(IndexedStorage):
    """Records in an SQLite file that ``pack pack.to=sqlite`` wrote; other tables are dataset=sql.

    The file is opened for reading only. A program may write to it meanwhile: a row that is gone is
    a bad record, and the next start makes the index anew. A write-ahead log is taken into account.

    Args:
        path: The file; with ``train.sqlite`` and ``val.sqlite``, their folder.
        columns: The fields that are read, beside image and label; None: all.
        classes: Class names by id; None: those of the file.
    """

    name = "sqlite"
    index_version = 3

    def __init__(
        self, path: str, *, columns: list[str] | None = None, classes: list[str] | None = None
    ) -> None:
        self.path = os.path.abspath(path)
        self.columns = None if columns is None else tuple(columns)
        self.classes = None if classes is None else tuple(classes)
        self._kinds: dict[str, Kind] = {}

    def mark(self) -> Any:
        """Size and time of the file and of its write-ahead log."""
        return change_mark(self._find_file())

    def learn(self, metadata: dict[str, Any]) -> None:
        """Keep what the columns become."""
        self._kinds = metadata["kinds"]

    def open(self) -> _Database:
        """Prepare to query; connections are opened when they are needed."""
        return _Database(self._find_file())

    def scan(self) -> IndexContent:
        """Look at all rows, but not at their images: numbers, keys and labels."""
        try:
            database = _Database(self._find_file())
            kinds, names = self._read_layout(database)
            label = "label" if "label" in kinds else "NULL"
            size_bytes = 'length("image")' if kinds.get("image") == "file" else "NULL"
            select = f'SELECT rowid, "key", {label}, {size_bytes} FROM samples ORDER BY rowid'
            rows = database.rows(select)
        except (BadStatement, DamagedRows, MissingFile) as error:
            raise ValueError(
                f"{self}: damaged or no SQLite file: {error}; copy it again, or restore it"
            ) from error
        if not rows:
            raise ValueError(f"{self}: it has no row; nothing to read")
        places, keys, labels, sizes = zip(*rows, strict=True)
        if not (np.diff(places) > 0).all() or not all(isinstance(key, str) for key in keys):
            raise ValueError(
                f"{self}: damaged: its rows are out of order, or one has no key; copy it again, "
                f"or restore it"
            )
        refuse_twice([key.encode() for key in keys], where=str(self))
        columns: dict[str, NDArray[Any]] = {"row": np.array(places, np.int64)}
        if size_bytes != "NULL":
            columns["size_bytes"] = np.array([size or 0 for size in sizes], np.int64)
        class_names = None
        if label != "NULL":
            where = f"{self}: column 'label'"
            columns["label"], class_names = label_ids(
                labels, self.classes, names=names, where=where
            )
        kept = set(kinds) if self.columns is None else {"image", REST, *self.columns}
        kinds = {n: k for n, k in kinds.items() if n in kept and n not in ("key", "label")}
        return {
            "keys": keys,
            "columns": columns,
            "class_names": class_names,
            "content": repr(sorted(kinds.items())),
            "metadata": {"kinds": kinds},
        }

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read rows; one that is damaged or gone is a bad record.

        Raises:
            OSError: The disk has trouble that did not pass.
        """
        indices = np.asarray(indices, np.int64)
        places = self.index.values("row", indices).tolist()
        found: dict[int, Any] = {}
        wanted = sorted(set(places))
        for start in range(0, len(wanted), _BATCH_ROWS):
            self._fetch(wanted[start : start + _BATCH_ROWS], found)
        return self.records(indices, (self._fields(found.get(place)) for place in places))

    def _find_file(self) -> str:
        """Find the file itself, which may be the only one in a folder."""
        files: tuple[str, ...] = ()
        what = "nothing there"
        if os.path.isdir(self.path):
            names = sorted(os.listdir(self.path))
            files = tuple(name for name in names if name.endswith(_ENDINGS) and name[0] != ".")
            what = f"a folder of {len(files)}"
        if os.path.isfile(self.path) or len(files) == 1:
            return os.path.join(self.path, *files)
        raise ValueError(
            f"{self}: expected an SQLite file, got {what}; set dataset.storage.path to a file, or "
            f"to a folder with train.sqlite and val.sqlite"
        )

    def _read_layout(self, database: _Database) -> tuple[dict[str, Kind], list[str] | None]:
        """Read what the columns of a packed file hold, and the names of its classes."""
        about = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"
        tables = [name for (name,) in database.rows(about) if not name.startswith("sqlite_")]
        if {LAYOUT, "samples"} <= set(tables):
            try:
                [(text,)] = database.rows(f"SELECT value FROM {LAYOUT} WHERE name = 'layout'")
                layout = parse_json(text)
                return dict(layout["kinds"]), layout["classes"]
            except (ValueError, KeyError, TypeError) as error:
                raise DamagedRows(f"its table {LAYOUT} does not say what it holds") from error
        known = ", ".join(map(repr, tables)) or "none"
        raise ValueError(
            f"{self}: tables of another program ({known}), expected what pack pack.to=sqlite "
            f"wrote; type dataset=sql dataset.storage.url=sqlite:///{database.path} "
            f"dataset.storage.table={tables[0] if tables else 'NAME'}"
        )

    def _fetch(self, places: list[int], found: dict[int, Any]) -> None:
        """Read rows, which are put into `found` by their places; or the cause for one by itself."""
        names = ["rowid", *map(quoted, self._kinds)]
        marks = ", ".join("?" * len(places))
        try:
            rows = self.opened.rows(
                f"SELECT {', '.join(names)} FROM samples WHERE rowid IN ({marks})", places
            )
        except (BadStatement, DamagedRows, MissingFile) as error:
            if len(places) == 1:
                found[places[0]] = str(error)
            else:
                for place in places:
                    self._fetch([place], found)
            return
        found |= {place: values for place, *values in rows}

    def _fields(self, row: Sequence[Any] | str | None) -> dict[str, Any] | str:
        """Make the fields of a row that was read, or say why they cannot be had."""
        if row is None or isinstance(row, str):
            return row or "its row is gone"
        fields: dict[str, Any] = {}
        for (name, kind), value in zip(self._kinds.items(), row, strict=True):
            try:
                if kind == "rest" and value is not None:
                    fields |= restore_rest(value, self.columns)
                elif value is not None:
                    fields[name] = restore(value, kind)
            except ValueError as error:
                return f"column {name!r} {error}"
        return fields


def quoted(name: str) -> str:
    """Quote a name for SQL."""
    return '"' + name.replace('"', '""') + '"'


class _Database:
    """A file that threads read from at the same time, each with a connection of its own.

    A connection that is not in use waits for the next thread. A forked process has to make a
    database of its own.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._idle: list[ReadingConnection] = []

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Read all rows of a query; raises as `open_to_read` and its cursors."""
        root = os.path.dirname(self.path)
        return retried(lambda: self._rows(sql, parameters), path=self.path, root=root)

    def _rows(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = None
        if connection is None or not connection.is_current:
            connection = open_to_read(self.path, timeout_s=_READ_LIMIT_S)
        try:
            rows: list[Any] = connection.cursor().execute(sql, parameters).fetchall()
        except OSError as error:
            if error.errno == errno.ETIMEDOUT:
                raise DamagedRows(
                    "reading it computes for too long, as damage can make it"
                ) from error
            raise
        self._idle.append(connection)  # one that fails is not used again
        return rows


_NAME = "samples.sqlite"
# Larger than is usual, since a row with its image then seldom leaves most of a page empty.
_PAGE_BYTES = 16_384
_TYPES = {"file": "BLOB", "bytes": "BLOB", "npy": "BLOB", "float": "REAL", "int": "INTEGER",
          "bool": "INTEGER"}  # fmt: skip


@register("writer", "sqlite")
class SqliteWriter:
    """A folder with samples.sqlite, whose table ``samples`` has a column for each field.

    Images and byte strings are blobs, arrays the bytes of ``.npy`` files, objects JSON. What a
    record has beside lies in the column ``penstock_rest``, and the table ``penstock`` names the
    classes. Rows are numbered from 1 in the order of the source.
    """

    version = 1
    part_records = 4096
    part_bytes = 1 << 26
    cannot_hold: frozenset[str] = frozenset()
    storage_arguments: dict[str, Any] = {}  # noqa: RUF012

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Make the tables, if they are not there yet."""
        columns = _columns(plan)
        for record in plan.samples:
            split_fields(record.fields, columns, key=record.key)
        kinds = {"key": "text"} | ({"label": "int"} if _has_label(plan) else {})
        kinds |= {column.name: column.kind for column in columns} | {REST: "rest"}
        layout = json.dumps({"version": 1, "classes": plan.class_names, "kinds": kinds})
        with _opened(folder / _NAME) as database:
            if database.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
                database.execute(f"PRAGMA page_size={_PAGE_BYTES}")
                database.execute("BEGIN")
                database.execute(_create(plan))
                database.execute(f"CREATE TABLE {LAYOUT} (name TEXT PRIMARY KEY, value TEXT)")
                database.execute(f"INSERT INTO {LAYOUT} VALUES ('layout', ?)", (layout,))
                database.execute("COMMIT")

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write the part's rows into a file of its own."""
        name = f"spool-{part.number:06d}"
        (folder / name).unlink(missing_ok=True)
        columns = _columns(plan)
        names = _names(plan)
        marks = ", ".join("?" * len(names))

        def rows() -> Iterator[list[Any]]:
            for record in records:
                values = split_fields(record.fields, columns, key=record.key)
                values |= {"key": record.key, "label": record.fields.get("label")}
                yield [values.get(name) for name in names]

        with _opened(folder / name) as database:
            # What is not whole is written again, so it needs no journal.
            database.execute("PRAGMA journal_mode=OFF")
            database.execute("PRAGMA synchronous=OFF")
            database.execute(f"PRAGMA page_size={_PAGE_BYTES}")
            database.execute("BEGIN")
            database.execute(_create(plan))
            database.executemany(f"INSERT INTO samples VALUES ({marks})", rows())
            database.execute("COMMIT")
        return Written(spooled=(name,))

    def join_part(self, folder: Path, plan: PackPlan, summary: PartSummary) -> None:
        """Add a part's rows in one transaction, unless they are there."""
        with _opened(folder / _NAME) as database:
            [(last,)] = database.execute("SELECT coalesce(max(rowid), 0) FROM samples")
            if last >= summary.first + len(summary):
                return
            assert last == summary.first, (last, summary.first)
            spool = str(folder / summary.written.spooled[0])
            names = ", ".join(map(quoted, _names(plan)))
            database.execute("ATTACH ? AS spool", (spool,))
            database.execute("BEGIN")
            database.execute(
                f"INSERT INTO samples (rowid, {names}) SELECT rowid + ?, {names} "
                f"FROM spool.samples ORDER BY rowid",
                (summary.first,),
            )
            database.execute("COMMIT")

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """All is in the file."""


def _columns(plan: PackPlan) -> list[FieldColumn]:
    """Columns of the fields; images come last, since what is behind them is found through them."""
    columns = plan_columns(plan.samples, arrays=False, nan=False)
    return sorted(columns, key=lambda column: (column.kind in ("file", "npy"), column.kind))


def _has_label(plan: PackPlan) -> bool:
    return any("label" in record.fields for record in plan.samples)


def _names(plan: PackPlan) -> list[str]:
    label = ["label"] if _has_label(plan) else []
    return ["key", *label, REST, *(column.name for column in _columns(plan))]


def _create(plan: PackPlan) -> str:
    label = ["label INTEGER"] if _has_label(plan) else []
    fields = [f"{quoted(c.name)} {_TYPES.get(c.kind, 'TEXT')}" for c in _columns(plan)]
    return f"CREATE TABLE samples ({', '.join(['key TEXT', *label, f'{REST} BLOB', *fields])})"


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    import errno
    import sqlite3

    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            yield database
    except sqlite3.OperationalError as error:
        is_full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        raise OSError(errno.ENOSPC if is_full else errno.EIO, str(error), str(path)) from error
