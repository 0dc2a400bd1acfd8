"""Write records into arrays, a `.npy` file for each field."""

from __future__ import annotations

import io
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.contracts import Writer
from penstock.core.files import write_lines
from penstock.core.parts import PackPlan, Part, PartSummary, Written, written_keys
from penstock.core.registry import register
from penstock.core.sample import Record
from penstock.datasets.records.labels import CLASSES_NAME
from penstock.datasets.storages.memmap.storage import KEYS_NAME

_BUFFER_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class RowSpec:
    """The shape of every row of an array, and its type in NumPy's notation."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, value: Any) -> RowSpec | None:
        """Describe a value as a row; return None if no array can round-trip it."""
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
        """Return the header of a file of `rows` rows; NumPy's NEP 1."""
        file = io.BytesIO()
        about = {"descr": self.dtype, "fortran_order": False, "shape": (rows, *self.shape)}
        np.lib.format.write_array_header_1_0(file, about)
        return file.getvalue()


_FILES = {"image": "images.npy", "label": "labels.npy"}
_NOT_FIELDS = ("images", "labels", "masks", "index", "key", "position", "epoch", "valid")
_CHANNELS = (1, 3, 4)


@register("writer", "memmap")
class MemmapWriter(Writer):
    """A folder of arrays with a row for each record: images.npy, labels.npy and so on.

    All records have the same fields, each of one shape and type: images are decoded pixels of
    one size. ``classes.txt`` holds the class names, and ``keys.txt`` any keys other than row
    numbers, one a line.
    """

    version = 2
    part_records = 8192
    part_bytes = 1 << 26
    cannot_hold = frozenset("files pixels shapes bytes values missing".split())

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Check the samples and the names of classes."""
        specs = _specs(plan)
        for record in plan.samples:
            _check(record, specs, plan)
        for name in plan.class_names or ():
            _refuse_lines(name, "class name")

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write the rows of each field into a separate file."""
        specs = _specs(plan)
        spooled = {name: f"{name}-{part.number:06d}" for name in specs}
        with ExitStack() as stack:
            files = {
                name: stack.enter_context(open(folder / file, "wb", buffering=_BUFFER_BYTES))
                for name, file in spooled.items()
            }
            for record in records:
                _check(record, specs, plan)
                _refuse_lines(record.key, "key")
                for name, file in files.items():
                    file.write(np.asarray(record.fields[name], specs[name].dtype).tobytes())
        return Written(spooled=tuple(spooled.values()))

    def join_part(self, folder: Path, plan: PackPlan, summary: PartSummary) -> None:
        """Write the rows of a part into their places in the arrays."""
        for (name, spec), spooled in zip(
            _specs(plan).items(), summary.written.spooled, strict=True
        ):
            path = folder / _file(name)
            with open(path, "r+b" if path.exists() else "wb") as file:
                file.seek(len(spec.header(len(plan))) + summary.first * spec.row_bytes)
                with open(folder / spooled, "rb") as rows:
                    shutil.copyfileobj(rows, file, _BUFFER_BYTES)

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """Write headers, class names and keys."""
        specs, count = _specs(plan), sum(map(len, summaries))
        for name, spec in specs.items():
            header = spec.header(count)
            assert len(header) == len(spec.header(len(plan)))  # NumPy leaves room for the count
            with open(folder / _file(name), "r+b") as file:
                file.write(header)
                file.truncate(len(header) + count * spec.row_bytes)
                file.flush()
                os.fsync(file.fileno())
        if "label" in specs and plan.class_names:
            write_lines(folder / CLASSES_NAME, plan.class_names)
        keys = written_keys(plan, summaries)
        if any(key != b"%d" % number for number, key in enumerate(keys)):
            write_lines(folder / KEYS_NAME, keys)


def _specs(plan: PackPlan) -> dict[str, RowSpec]:
    """Describe the fields of the first record."""
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
    """Refuse a record that differs from the first in fields, shapes or types."""
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
