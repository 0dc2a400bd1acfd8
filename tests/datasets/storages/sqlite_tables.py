"""SQLite databases, written by the library."""

import contextlib
import sqlite3

from penstock.datasets.storages.sql import SqlStorage
from tests.contracts.storage import read_all, summary


def put(path, *statements, rows=(), insert=None, **options):
    """Run statements on a database, and add rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for name, value in options.items():
            database.execute(f"PRAGMA {name}={value}")
        for statement in statements:
            database.execute(statement)
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            database.executemany(insert or f"INSERT INTO samples VALUES ({marks})", rows)
    return str(path)


TABLE = "CREATE TABLE samples (name TEXT, label TEXT, age INT, image BLOB)"
CLASSES = ["cat", "dog", "ürm"]


def put_samples(path, encoded, create=TABLE, **options):
    rows = [(f"ü/{i}.jpg", CLASSES[i % 3], i * i, b) for i, b in enumerate(encoded)]
    return put(path, create, rows=rows, **options)


def sample_records(encoded, *, by_name=False):
    return [
        (f"ü/{i}.jpg" if by_name else str(i + 1),
         {"image": b, "label": i % 3, "age": i * i} | ({} if by_name else {"name": f"ü/{i}.jpg"}))
        for i, b in enumerate(encoded)
    ]  # fmt: skip


def everything(storage):
    return summary(read_all(storage))


def at(path, **options):
    """Open the tables of a file."""
    return SqlStorage(f"sqlite:///{path}", **options)
