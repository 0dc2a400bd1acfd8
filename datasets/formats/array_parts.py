"""`.npy` files that several processes fill: made at their full length, written row by row."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from datasets.index import write_whole

_BUFFER_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class RowSpec:
    """What every row of an array is: its shape, and its type as NumPy writes it."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, value: Any) -> RowSpec | None:
        """What a value is as a row; None where no array can hold it and give it back."""
        if isinstance(value, np.ndarray):
            native = value.dtype.newbyteorder("<").str
            return cls(value.shape, native) if value.shape and value.size else None
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, bool):
            return cls((), "|b1")
        if isinstance(value, int):
            return cls((), "<i8") if -(1 << 63) <= value < 1 << 63 else None
        return cls((), "<f8") if isinstance(value, float) else None

    @property
    def row_bytes(self) -> int:
        """Size of a row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def header(self, rows: int) -> bytes:
        """The header of a file of so many rows; NumPy's NEP 1."""
        file = io.BytesIO()
        about = {"descr": self.dtype, "fortran_order": False, "shape": (rows, *self.shape)}
        np.lib.format.write_array_header_1_0(file, about)
        return file.getvalue()


def make_array(path: Path, spec: RowSpec, rows: int) -> None:
    """Make a file of zeros, if none is there; no disk is taken yet."""
    if path.exists():
        return
    header = spec.header(rows)

    def write(file: Any) -> None:
        file.write(header)
        file.truncate(len(header) + rows * spec.row_bytes)

    write_whole(path, write)


class RowFile:
    """A file that rows are written to, in order from one on.

    Written, and not mapped: a full disk is then an error and no signal.

    Args:
        path: A file that `make_array` made.
        spec: Of its rows.
        rows: How many it has in all.
        start: The first that is written.
    """

    def __init__(self, path: Path, spec: RowSpec, rows: int, start: int) -> None:
        self._dtype = np.dtype(spec.dtype)
        self._file = open(path, "r+b", buffering=max(_BUFFER_BYTES, spec.row_bytes))
        self._file.seek(len(spec.header(rows)) + start * spec.row_bytes)

    def write(self, value: Any) -> None:
        """Write the next row."""
        row = np.asarray(value, self._dtype)
        self._file.write(row.tobytes() if row.ndim == 0 else np.ascontiguousarray(row).data)

    def close(self) -> None:
        """Bring all rows to the disk."""
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())


def keep_rows(path: Path, spec: RowSpec, rows: int, ranges: list[tuple[int, int]]) -> None:
    """Write a file anew with some of its rows, if it has others yet.

    Args:
        path: The file.
        spec: Of its rows.
        rows: How many it was made with.
        ranges: First row and number of rows of those that stay.
    """
    kept = sum(count for _, count in ranges)
    header = spec.header(rows)
    if kept == rows or path.stat().st_size != len(header) + rows * spec.row_bytes:
        return

    def write(file: Any) -> None:
        file.write(spec.header(kept))
        with open(path, "rb") as source:
            for start, count in ranges:
                source.seek(len(header) + start * spec.row_bytes)
                for size in _pieces(count * spec.row_bytes):
                    file.write(source.read(size))

    write_whole(path, write)


def _pieces(size: int) -> Iterator[int]:
    for start in range(0, size, _BUFFER_BYTES):
        yield min(_BUFFER_BYTES, size - start)
