"""Write a shard per part, for all array formats."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.arrays import check_field, field_name, field_place
from penstock.core.contracts import Writer
from penstock.core.files import write_lines
from penstock.core.parts import PackPlan, Part, PartSummary, Written
from penstock.core.sample import Record
from penstock.datasets.records.labels import CLASSES_NAME

_CHANNELS = (1, 3, 4)


def to_arrays(records: Sequence[Record]) -> dict[str, NDArray[Any]]:
    """Stack the fields of records into arrays [n, ...] by name; numbers become 64 bits wide.

    ValueError if records differ in fields, types or shapes, or have other values than numbers.
    """
    first, arrays = records[0], dict[str, NDArray[Any]]()
    for record in records:
        for name in sorted(first.fields.keys() ^ record.fields.keys()):
            one, other = (record, first) if name in record.fields else (first, record)
            raise ValueError(
                f"pack: {one.key!r} has a field {name!r} and {other.key!r} has none, and every row "
                f"of an array has all fields; pack it as lmdb, or drop the field"
            )
    for name in sorted(first.fields, key=field_place):
        check_field(name, f"the field {name!r}", where="pack")
        if field_name(name) != name:
            raise ValueError(
                f"pack: the field {name!r} would be read as {field_name(name)!r}; rename it with "
                f"dataset.keys"
            )
        arrays[name] = array = _stacked(name, records)
        if name == "image" and (
            array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] not in _CHANNELS
        ):
            raise ValueError(
                f"pack: the image of {first.key!r} is {_shown(first.fields[name])}, expected uint8 "
                f"[H, W, C] with 1, 3 or 4 channels; convert it, or rename it with dataset.keys"
            )
        if name == "label" and (array.dtype != np.int64 or not 0 <= array.min() < 1 << 24):
            raise ValueError(
                f"pack: a label is {array.min()}, expected class ids from 0 on; correct it, or "
                f"drop the field with dataset.keys={{label:null}}"
            )
    return arrays


def _stacked(name: str, records: Sequence[Record]) -> NDArray[Any]:
    forms = [_form(record.fields[name]) for record in records]
    first, value = records[0], records[0].fields[name]
    for form, record in zip(forms, records, strict=True):
        if form is None:
            remedy = "drop or rename it, or pack it as lmdb"
            if name == "image" and isinstance(value, bytes):
                remedy = "give pack.raw=1, for images of one size, or pack it as lmdb"
            raise ValueError(
                f"pack: field {name!r} of {record.key!r} is {_shown(record.fields[name])}, and "
                f"arrays hold numbers of one shape; {remedy}"
            )
        if form != forms[0]:
            raise ValueError(
                f"pack: {name!r} is {_shown(value)} in {first.key!r} and "
                f"{_shown(record.fields[name])} in {record.key!r}, and the rows of an array have "
                f"one shape and type; bring them to one, or pack it as lmdb"
            )
    return np.array([record.fields[name] for record in records])


def _form(value: Any) -> Any:
    """Return the type and shape of a value; None if no array round-trips it."""
    if isinstance(value, np.ndarray):
        return (value.dtype, value.shape) if value.ndim and value.size else None
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return None
    return type(value) if isinstance(value, bool | int | float) else None


def _shown(value: Any) -> str:
    if hasattr(value, "dtype"):
        return f"{value.dtype} {list(value.shape)}"
    return f"a {type(value).__name__}"


class ShardWriter(Writer):
    """Writes a shard per part, with an array [n, ...] for each field, and the class names.

    All records of a part have the same fields, each of one type and shape. The field ``key``
    contains the keys.
    """

    part_bytes = 1 << 26
    cannot_hold = frozenset("files pixels shapes bytes values missing".split())

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Check the sample records and the class names."""
        for name in plan.class_names or ():
            if "\n" in name or "\r" in name:
                raise ValueError(f"pack: the class name {name!r} has more than one line; rename it")
        if plan.samples:
            self._check(to_arrays(plan.samples))

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write a shard, or nothing if no record is readable."""
        found = list(records)
        if not found:
            return Written()
        keys = plan.index.raw_keys(np.array([record.index for record in found], np.int64))
        names = [key.decode("utf-8", "surrogateescape") for key in keys]
        like = plan.samples[:1]
        rows = {n: array[len(like) :] for n, array in to_arrays([*like, *found]).items()}
        return Written(files=self._write(folder, part.number, names, rows))

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """Write the class names."""
        if plan.class_names is not None and any(s.labels is not None for s in summaries):
            write_lines(folder / CLASSES_NAME, plan.class_names)

    def _check(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Raise ValueError for arrays of an unsupported type."""
        return

    @abstractmethod
    def _write(
        self, folder: Path, number: int, keys: list[str], arrays: Mapping[str, NDArray[Any]]
    ) -> tuple[str, ...]:
        """Write keys and arrays of a shard, and return the names of its files."""
