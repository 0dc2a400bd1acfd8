"""Write records into an SQLite file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.parts import PackPlan, Part, PartSummary, Written
from penstock.core.registry import register
from penstock.core.sample import Record
from penstock.datasets.columnar.record_columns import REST, FieldColumn, plan_columns, split_fields
from penstock.datasets.storages.sqlite.storage import LAYOUT, quoted

if TYPE_CHECKING:
    import sqlite3

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
