"""SQLite files as ``pack`` writes them; tables of other programs are read by ``storages/sql``."""

from penstock.datasets.storages.sqlite.storage import SqliteStorage as SqliteStorage
from penstock.datasets.storages.sqlite.writer import SqliteWriter as SqliteWriter
