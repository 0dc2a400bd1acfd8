"""Read a table, view or query of a database: records by key, or a stream in ranges of keys."""

from penstock.datasets.storages.sql.source import SqlSource as SqlSource
from penstock.datasets.storages.sql.storage import SqlStorage as SqlStorage
