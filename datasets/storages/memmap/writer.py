"""Records into arrays, a `.npy` file for each field."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.contracts import WriterCapabilities
from penstock.core.files import write_lines, write_whole
from penstock.core.parts import PackPlan, Part, PartSummary, Written, written_keys
from penstock.core.registry import register
from penstock.core.sample import Record
from penstock.datasets.records.labels import CLASSES_NAME
from penstock.datasets.storages.memmap.storage import KEYS_NAME

_BUFFER_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class RowSpec:
    """The shape of every row of an array, and its type as NumPy writes it."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, value: Any) -> RowSpec | None:
        """Describe a value as a row; None where no array can hold it and give it back."""
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


_FILES = {"image": "images.npy", "label": "labels.npy"}
_NOT_FIELDS = ("images", "labels", "masks", "index", "key", "position", "epoch", "valid")
_CHANNELS = (1, 3, 4)


@register("writer", "memmap")
class MemmapWriter:
    """A folder of arrays with a row for each record: images.npy, labels.npy and so on.

    All records have the same fields, each of one shape and type: images are decoded pixels of
    one size. Class names are the lines of ``classes.txt``; keys, where they are not the numbers of
    the rows, those of ``keys.txt``.
    """

    version = 1
    part_records = 8192
    part_bytes = 1 << 26
    cannot_hold = frozenset("files pixels shapes bytes values missing".split())
    storage_arguments: dict[str, Any] = {}  # noqa: RUF012
    capabilities = WriterCapabilities(in_place=True)

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Make the arrays at their full length."""
        specs = _specs(plan)
        for record in plan.samples:
            _check(record, specs, plan)
        for name in plan.class_names or ():
            _refuse_lines(name, "class name")
        for name, spec in specs.items():
            make_array(folder / _file(name), spec, len(plan))

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write rows into their places; those that are left out leave the last of them unused."""
        specs = _specs(plan)
        with ExitStack() as stack:
            files = {
                name: stack.enter_context(
                    closing(RowFile(folder / _file(name), spec, len(plan), part.start))
                )
                for name, spec in specs.items()
            }
            for record in records:
                _check(record, specs, plan)
                _refuse_lines(record.key, "key")
                for name, file in files.items():
                    file.write(record.fields[name])
        return Written()

    def join_part(self, folder: Path, plan: PackPlan, summary: PartSummary) -> None:
        """The rows are in their places already."""

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """Close the gaps that records left which could not be read; write names and keys."""
        ranges = [(summary.part.start, len(summary)) for summary in summaries]
        for name, spec in _specs(plan).items():
            keep_rows(folder / _file(name), spec, len(plan), ranges)
        if "label" in _specs(plan) and plan.class_names:
            write_lines(folder / CLASSES_NAME, plan.class_names)
        keys = written_keys(plan, summaries)
        if any(key != b"%d" % number for number, key in enumerate(keys)):
            write_lines(folder / KEYS_NAME, keys)


def _specs(plan: PackPlan) -> dict[str, RowSpec]:
    """Describe every field as the first record has it.

    Raises:
        ValueError: No array can hold it.
    """
    if not plan.samples:
        raise ValueError("pack: memmap: none of the first records can be read; repair them")
    record = plan.samples[0]
    specs = {}
    for name, value in record.fields.items():
        spec = RowSpec.of(value)
        if spec is None or name in _NOT_FIELDS or not name.isidentifier():
            raise ValueError(
                f"pack: memmap: field {name!r} of {record.key!r} is {_shown(value)}, and arrays "
                f"hold numbers of one shape{_remedy(name, value)}"
            )
        if name == "image" and not (
            spec.dtype == "|u1" and len(spec.shape) == 3 and spec.shape[2] in _CHANNELS
        ):
            raise ValueError(
                f"pack: memmap: the image of {record.key!r} is {_shown(value)}, expected uint8 "
                f"[H, W, C] with 1, 3 or 4 channels; rename it with dataset.keys"
            )
        specs[name] = spec
    return specs


def _check(record: Record, specs: dict[str, RowSpec], plan: PackPlan) -> None:
    """Refuse a record that is not as the first one."""
    first = plan.samples[0]
    for name in sorted(specs.keys() ^ record.fields.keys()):
        one, other = (record, first) if name in record.fields else (first, record)
        raise ValueError(
            f"pack: memmap: {one.key!r} has a field {name!r} and {other.key!r} has none, and every "
            f"row has all fields; pack it as lmdb, or drop the field"
        )
    for name, spec in specs.items():
        if RowSpec.of(record.fields[name]) != spec:
            raise ValueError(
                f"pack: memmap: {name!r} is {_shown(first.fields[name])} in {first.key!r} and "
                f"{_shown(record.fields[name])} in {record.key!r}, and the rows of an array have "
                f"one shape and type; bring them to one, or pack it as lmdb"
            )


def _shown(value: Any) -> str:
    if hasattr(value, "dtype"):
        return f"{value.dtype} {list(value.shape)}"
    return f"a {type(value).__name__}"


def _remedy(name: str, value: Any) -> str:
    if name == "image" and not hasattr(value, "dtype"):
        return "; give pack.raw=1, for images of one size, or pack it as lmdb"
    return "; drop or rename it, or pack it as lmdb"


def _file(name: str) -> str:
    return _FILES.get(name, f"{name}.npy")


def _refuse_lines(text: str, what: str) -> None:
    if "\n" in text:
        raise ValueError(
            f"pack: memmap: the {what} {text!r} has a line break, and each is a line of a file; "
            f"rename it, or pack it as lmdb"
        )
