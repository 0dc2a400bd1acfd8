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
    """Stack the fields of records into arrays [n, ...] by name.

    ValueError if records differ in fields, types or shapes, or have other values than numbers.
    """
    first, arrays = records[0], dict[str, NDArray[Any]]()
    for record in records:
        if names := first.fields.keys() ^ record.fields.keys():
            raise ValueError(
                f"pack: of {first.key!r} and {record.key!r} one has a field {min(names)!r}, and "
                f"every row of an array has all fields; pack it as lmdb, or drop the field"
            )
    for name in sorted(first.fields, key=field_place):
        check_field(name, f"the field {name!r}", where="pack")
        if field_name(name) != name:
            raise ValueError(
                f"pack: the field {name!r} would be read as {field_name(name)!r}; rename it with "
                f"dataset.keys"
            )
        arrays[name] = array = _stacked(name, records)
        if name == "image" and not (
            array.dtype == np.uint8 and array.ndim == 4 and array.shape[3] in _CHANNELS
        ):
            raise ValueError(
                f"pack: the image of {first.key!r} is {array.dtype} {list(array.shape[1:])}, "
                f"expected uint8 [H, W, C]; convert it, or rename it with dataset.keys"
            )
        if name == "label" and not (array.dtype == np.int64 and 0 <= array.min() < 1 << 24):
            raise ValueError(
                f"pack: a label is {array.min()}, expected class ids from 0 on; correct it, or "
                f"drop the field with dataset.keys={{label:null}}"
            )
    return arrays


def _stacked(name: str, records: Sequence[Record]) -> NDArray[Any]:
    """Stack the values of a field; numbers become bool, int64 or float64 [n]."""
    values = [record.fields[name] for record in records]
    values = [value.item() if isinstance(value, np.generic) else value for value in values]
    kinds = {type(value) for value in values}
    if kinds == {np.ndarray}:
        shapes = {(value.dtype, value.shape) for value in values}
        if len(shapes) == 1 and values[0].size and values[0].ndim:
            return np.stack(values)
    elif len(kinds) == 1 and kinds <= {bool, int, float}:
        array = np.array(values)
        if array.dtype in (np.bool_, np.int64, np.float64):
            return array
    raise ValueError(
        f"pack: the field {name!r} of {records[0].key!r} and others is no number and no array of "
        f"numbers of one shape and type; convert or drop it, or pack it as lmdb"
    )


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
        for record in plan.samples:
            self._check(to_arrays([plan.samples[0], record]))

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write a shard, or nothing if no record is readable."""
        found = list(records)
        if not found:
            return Written()
        keys = plan.index.raw_keys(np.array([record.index for record in found], np.int64))
        names = [key.decode("utf-8", "surrogateescape") for key in keys]
        arrays = to_arrays([plan.samples[0], *found])
        rows = {name: array[1:] for name, array in arrays.items()}
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
