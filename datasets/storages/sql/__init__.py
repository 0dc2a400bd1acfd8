"""Read a table, view or query of a database by key."""

from penstock.datasets.storages.sql.storage import SqlStorage as SqlStorage
