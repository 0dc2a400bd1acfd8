"""LMDB: one memory-mapped file of keys and values."""

from penstock.datasets.storages.lmdb.storage import LmdbStorage as LmdbStorage
from penstock.datasets.storages.lmdb.writer import LmdbWriter as LmdbWriter
