"""SQLite: a table, view or query of a database file."""

from penstock.datasets.storages.sqlite.storage import SqliteStorage as SqliteStorage
from penstock.datasets.storages.sqlite.writer import SqliteWriter as SqliteWriter
