"""Samples in files of many: found by cumulative index, read in the order in which they lie."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.file_reader import MissingFile
from datasets.group_cache import GroupCache

# What one process keeps: arrays that had to be decompressed, and files that are mapped, each with a
# descriptor; a part of those that it may have, since views keep files open too.
_KEPT_BYTES = 1 << 28
_MOST_FILES = 1024
_PART_OF_DESCRIPTORS = 4
# Larger rows are views, of which a crop may be all that is needed, or are copied one by one, since
# gathering several takes memory for all of them.
_LARGE_ROW_BYTES = 1 << 14


ABSENT = object()
"""The value of a field that a record has not."""


class DamagedShard(Exception):
    """Samples that cannot be had; the message is the cause."""


@dataclass(frozen=True, slots=True)
class OpenShard:
    """The arrays of a shard.

    Attributes:
        fields: Arrays [n, ...] by field; or whatever gives the value of a row by its number.
        files: Path and size in bytes of the files that they are mapped from.
        size_bytes: Memory that they take beside these.
    """

    fields: dict[str, Any]
    files: tuple[tuple[str, int], ...]
    size_bytes: int = 0


class ShardRows:
    """The rows of all shards, in this process. Threads share it.

    Args:
        counts: Samples in each shard, int64 [S].
        open_shard: Opens a shard by number. Raises `DamagedShard` or
            `datasets.file_reader.MissingFile` where it cannot be had.
    """

    def __init__(self, counts: NDArray[np.int64], open_shard: Callable[[int], OpenShard]) -> None:
        self._starts = np.concatenate([[0], np.cumsum(counts)])
        self._open = open_shard
        self._opened = GroupCache(_KEPT_BYTES)
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if allowed == resource.RLIM_INFINITY:
            allowed = _MOST_FILES * _PART_OF_DESCRIPTORS
        self._most_files = max(1, min(allowed // _PART_OF_DESCRIPTORS, _MOST_FILES))

    def read(self, rows: NDArray[np.int64]) -> list[dict[str, Any] | str]:
        """Fields of the given rows, int64 [n], or why there are none.

        Large arrays are read-only views of the files, which keep these open: where they lie in
        many files, they are copies. Small ones are copies too.

        Raises:
            OSError: The disk has trouble that did not pass.
        """
        found: list[dict[str, Any] | str] = [""] * len(rows)
        groups = list(self._by_shard(rows))
        copied = len(groups) * 4 > self._most_files
        for shard, places, local in groups:
            try:
                fields = self._fields(shard)
                columns = [_values(array, local, copied) for array in fields.values()]
            except (DamagedShard, MissingFile) as error:
                for place in places.tolist():
                    found[place] = str(error)
                continue
            for place, *values in zip(places.tolist(), *columns, strict=True):
                found[place] = _record(fields, values)
        return found

    def take(
        self, rows: NDArray[np.int64], fields: Collection[str], into: dict[str, NDArray[Any]]
    ) -> bool:
        """Copy the given rows, int64 [n], into one array [n, ...] per field.

        Returns:
            False where a row cannot be had; then the arrays hold nothing that means anything.
        """
        for shard, places, local in self._by_shard(rows):
            try:
                arrays = self._fields(shard)
            except (DamagedShard, MissingFile):
                return False
            for name in fields:
                array, out = arrays[name], into[name]
                if len(places) == len(rows):  # all in one shard, and in their order
                    # With the default mode NumPy would take into a buffer and copy that.
                    np.take(array, local, axis=0, out=out, mode="clip")
                elif out[:1].nbytes < _LARGE_ROW_BYTES:
                    out[places] = array[local]
                else:
                    for place, row in zip(places.tolist(), local.tolist(), strict=True):
                        out[place] = array[row]
        return True

    def whole(self, shard: int, field: str) -> Any:
        """A field of one shard.

        Raises:
            DamagedShard: It cannot be had.
            datasets.file_reader.MissingFile: Its file is gone.
        """
        return self._fields(shard)[field]

    def _by_shard(
        self, rows: NDArray[np.int64]
    ) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Shard, places in `rows` and rows in the shard; sorted where there are several."""
        if not rows.size:
            return
        shards = np.searchsorted(self._starts, rows, side="right") - 1
        if shards.min() == shards.max():
            yield int(shards[0]), np.arange(len(rows)), rows - self._starts[shards[0]]
            return
        order = np.argsort(rows, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(shards[order])) + 1):
            shard = int(shards[places[0]])
            yield shard, places, rows[places] - self._starts[shard]

    def _fields(self, shard: int) -> dict[str, Any]:
        def load() -> tuple[OpenShard, int]:
            opened = self._open(shard)
            files = len(opened.files) * (_KEPT_BYTES // self._most_files)
            return opened, files + opened.size_bytes

        opened: OpenShard = self._opened.get(shard, load)
        for path, size_bytes in opened.files:
            # Pages behind the end of a file that became shorter must not be touched.
            missing = size_bytes - _size(path, size_bytes)
            if missing > 0:
                name = os.path.basename(path)
                raise DamagedShard(f"{name}: the file ends {missing:,} bytes too early")
        return opened.fields


def _record(names: Iterable[str], values: list[Any]) -> dict[str, Any] | str:
    """The fields of one record, or why it cannot be had."""
    for value in values:
        if isinstance(value, DamagedShard):
            return str(value)
    return {name: v for name, v in zip(names, values, strict=True) if v is not ABSENT}


def _size(path: str, known: int) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return known  # what is mapped stays, whatever has become of its name


def _values(array: Any, rows: NDArray[np.int64], copied: bool) -> list[Any]:
    """The values of some rows: numbers and text as Python's own, arrays that are read-only."""
    if not isinstance(array, np.ndarray):
        return [_value(array, row) for row in rows.tolist()]
    if array.ndim == 1:
        numbers: list[Any] = array[rows].tolist()
        return numbers
    if copied or array[:1].nbytes < _LARGE_ROW_BYTES:
        array, rows = array[rows], np.arange(len(rows))
        array.flags.writeable = False
    return [array[row] for row in rows.tolist()]


def _value(array: Any, row: int) -> Any:
    try:
        return array[row]
    except DamagedShard as error:
        return error
