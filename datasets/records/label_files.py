"""Find the label files of a storage and the records that they describe."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass

from penstock.core.user_errors import is_trouble
from penstock.datasets.files.access import is_url
from penstock.datasets.files.clients import AccessDenied
from penstock.datasets.files.local_copies import local_copy
from penstock.datasets.files.remote import find_file
from penstock.datasets.records.table import Table

MARK = ".packed.npz"
"""Packing writes it beside a split: an index with checksums, and names of annotations."""


@dataclass(frozen=True, slots=True)
class LabelFile:
    """A label file with its size and modification time."""

    path: str
    size_bytes: int
    mtime_ns: int

    @classmethod
    def at(cls, path: str) -> LabelFile | None:
        """Stat the file at `path`; return None if it does not exist."""
        try:
            status = os.stat(path)
        except (OSError, ValueError) as error:
            if is_trouble(error):
                raise
            return None
        is_file = stat.S_ISREG(status.st_mode)
        return cls(path, status.st_size, status.st_mtime_ns) if is_file else None


def find_mark(place: str) -> Table | None:
    """Open the index that packing wrote beside a split; return None without one."""
    if is_url(place):
        url = f"{place}/{MARK}"
        with contextlib.suppress(AccessDenied):  # object stores deny access to missing files
            return Table.open(local_copy(url)) if find_file(url) is not None else None
        return None
    path = os.path.join(place if os.path.isdir(place) else os.path.dirname(place), MARK)
    return Table.open(path) if os.path.isfile(path) else None
