"""LMDB: files of keys and values."""

from penstock.datasets.storages.lmdb.storage import LmdbStorage as LmdbStorage
from penstock.datasets.storages.lmdb.storage import LmdbWriter as LmdbWriter
