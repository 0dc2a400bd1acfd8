"""LMDB files for tests of what stands on them."""

from __future__ import annotations

from pathlib import Path

from datasets.protocols import Storage
from datasets.recoded import Recode
from datasets.writers.lmdb import LmdbWriter
from datasets.writing import write_storage


def write_lmdb(path: str | Path, source: Storage, *, recode: Recode | None = None) -> None:
    """Write all records of a storage as LMDB."""
    write_storage(LmdbWriter(), path, source, recode=recode)
