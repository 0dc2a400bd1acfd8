"""LMDB files for tests of what stands on them."""

from __future__ import annotations

from pathlib import Path

from penstock.core.contracts import Storage
from penstock.datasets.storages.lmdb import LmdbWriter
from penstock.datasets.writing import Recode, write_storage


def write_lmdb(path: str | Path, source: Storage, *, recode: Recode | None = None) -> None:
    """Write all records of a storage as LMDB."""
    write_storage(LmdbWriter(), path, source, recode=recode)
