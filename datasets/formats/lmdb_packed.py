"""The LMDB files that packing writes: values by their number, appended a part at a time."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

INDEX_NAME = "index.arrow"
DATA_NAME = "data.mdb"
# What one transaction writes; its pages are held in memory until then.
_TRANSACTION_BYTES = 1 << 25
_FIRST_MAP_BYTES = 1 << 28
Buffer = bytes | memoryview


def append_values(folder: Path, first: int, values: Sequence[Buffer]) -> None:
    """Append values under the keys ``0000000000``, ``0000000001``, ...; those there are passed.

    Every transaction has an environment of its own: the library fills the unused ends of pages
    with whatever it wrote before, and so the file is the same byte for byte wherever a process
    was killed and another went on.

    Args:
        folder: Of data.mdb.
        first: Number of the first value.
        values: All values.
    """
    start, taken = 0, 0
    for stop, value in enumerate(values):
        if stop > start and taken + len(value) > _TRANSACTION_BYTES:
            _append(folder, first + start, values[start:stop])
            start, taken = stop, 0
        taken += len(value)
    if values:
        _append(folder, first + start, values[start:])


def _append(folder: Path, first: int, values: Sequence[Buffer]) -> None:
    """Write some values in one transaction, in a larger map if they do not fit."""
    import lmdb

    exists = (folder / DATA_NAME).exists()
    # One writer in a folder of its own: no lock file. 0: as large a map as the file's own.
    env = lmdb.open(str(folder), map_size=0 if exists else _FIRST_MAP_BYTES, lock=False, max_dbs=0)
    try:
        while True:
            try:
                with env.begin(write=True) as transaction:
                    cursor = transaction.cursor()
                    if cursor.last() and int(cursor.key()) >= first:
                        return
                    _, added = cursor.putmulti(_items(first, values), append=True)
                    assert added == len(values), "the library passes over keys that are there"
                return
            except lmdb.MapFullError:
                env.set_mapsize(env.info()["map_size"] * 2)
            except lmdb.DiskError as error:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from error
            except lmdb.Error as error:  # half a write, too, where the disk becomes full
                cause = f"{error}: the disk is full, or fails"
                raise OSError(errno.EIO, cause, str(folder)) from error
    finally:
        env.close()


def _items(first: int, values: Sequence[Buffer]) -> Iterator[tuple[bytes, Buffer]]:
    return ((b"%010d" % number, value) for number, value in enumerate(values, first))
