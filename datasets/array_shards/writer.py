"""Write a shard per part, for all array formats."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.arrays import check_field, field_name, field_place
from penstock.core.contracts import Writer
from penstock.core.files import write_lines
from penstock.core.parts import PackPlan, Part, PartSummary, Written
from penstock.core.sample import Record
from penstock.datasets.array_shards.shards import ABSENT, CODES, FIELDS_NAME, KINDS, OFFSETS, SHAPES
from penstock.datasets.records.labels import CLASSES_NAME

_CODE = {kind: code for code, kind in enumerate(KINDS)}
_CHANNELS = (1, 3, 4)


def to_arrays(records: Sequence[Record], keys: Sequence[bytes]) -> dict[str, NDArray[Any]]:
    """Convert records to arrays by name; see `ShardWriter`."""
    arrays = {**_ragged("key", list(keys), records)}
    arrays[f"key.{CODES}"][:] = _CODE["text"]
    for name in sorted({name for record in records for name in record.fields}, key=field_place):
        check_field(name, f"the field {name!r}", where="pack")
        if field_name(name) != name:
            raise ValueError(
                f"pack: the field {name!r} would be read as {field_name(name)!r}; rename it with "
                f"dataset.keys"
            )
        values = [_value(record, name) for record in records]
        alike = _alike(name, values, records)
        arrays |= _ragged(name, values, records) if alike is None else {name: alike}
    return arrays


def check_class_names(names: Iterable[str] | None) -> None:
    """Raise ValueError for class names with line breaks."""
    for name in names or ():
        if "\n" in name or "\r" in name:
            raise ValueError(f"pack: the class name {name!r} has more than one line; rename it")


def _value(record: Record, name: str) -> Any:
    value = record.fields.get(name, ABSENT)
    return value.item() if isinstance(value, np.generic) else value


def _alike(name: str, values: list[Any], records: Sequence[Record]) -> NDArray[Any] | None:
    """Stack values into one array [n, ...]; return None if they differ in type or shape."""
    if name == "label":
        return _labels(values, records)
    kinds = set(map(type, values))
    if kinds == {np.ndarray}:
        forms = {(value.dtype, value.shape) for value in values}
        if len(forms) == 1 and values[0].ndim and values[0].dtype.kind in "biufc":
            if name == "image":
                _check_image(values[0], records[0])
            return np.stack(values)
    elif len(kinds) == 1 and kinds <= {bool, int, float}:
        array = np.array(values)
        if array.dtype in (np.bool_, np.int64, np.float64):
            return array
    return None


def _labels(values: list[Any], records: Sequence[Record]) -> NDArray[np.int64]:
    for value, record in zip(values, records, strict=True):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 24:
            given = "none" if value is ABSENT else repr(value)
            raise ValueError(
                f"pack: {record.key!r}: its label is {given}, expected a class id from 0 on, as "
                f"all records have; correct it, or drop the field with dataset.keys={{label:null}}"
            )
    return np.array(values, np.int64)


def _check_image(image: NDArray[Any], record: Record) -> None:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in _CHANNELS:
        raise ValueError(
            f"pack: {record.key!r}: its image is {image.dtype} {list(image.shape)}, expected a "
            f"file or uint8 [H, W, C]; convert it, or rename it with dataset.keys"
        )


def _ragged(name: str, values: list[Any], records: Sequence[Record]) -> dict[str, NDArray[Any]]:
    parts, codes, shapes = [], [], []
    for value, record in zip(values, records, strict=True):
        kind, part = _part(name, value, record)
        if kind == "array" and name == "image":
            _check_image(value, record)
        codes.append(_CODE[kind])
        parts.append(part)
        shapes.append(value.shape if kind == "array" else ())
    types = sorted({part.dtype.str for part, code in zip(parts, codes, strict=True) if code})
    if len(types) > 1 or types in (["<u8"], [">u8"]):
        raise ValueError(
            f"pack: the field {name!r} holds values of {' and '.join(types)} with differing "
            f"shapes, expected one type, and not uint64; convert or drop it"
        )
    axes = max(map(len, shapes))
    sizes = [len(part) for part in parts]
    arrays = {
        name: np.concatenate([p for p, code in zip(parts, codes, strict=True) if code] or parts),
        f"{name}.{OFFSETS}": np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]),
        f"{name}.{CODES}": np.array(codes, np.uint8),
    }
    if _CODE["array"] in codes:
        filled = [(*shape, *[-1] * (axes - len(shape))) for shape in shapes]
        arrays[f"{name}.{SHAPES}"] = np.array(filled, np.int64).reshape(len(parts), axes)
    return arrays


def _part(name: str, value: Any, record: Record) -> tuple[str, NDArray[Any]]:
    """Return the kind of a value, and its flattened content."""
    if value is ABSENT:
        return "absent", np.empty(0, np.uint8)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return "array", np.ascontiguousarray(value).reshape(-1)
    if isinstance(value, bytes | bytearray | memoryview):
        return "bytes", np.frombuffer(bytes(value), np.uint8)
    try:
        return "json", np.frombuffer(json.dumps(value).encode(), np.uint8)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"pack: {record.key!r}: field {name!r} is a {type(value).__name__}, expected bytes, "
            f"numbers, text, lists or arrays of numbers; convert or drop it"
        ) from error


class ShardWriter(Writer):
    """Writes a shard per part, and the class names.

    Fields are arrays [n, ...] if the records of a part agree in type and shape. Other fields are
    concatenated: ``FIELD.offsets`` has the start of each value and the end of the last,
    ``FIELD.shapes`` its shape, and ``FIELD.codes`` its kind (0 absent, 1 array, 2 bytes, 3 text,
    4 JSON). The field ``key`` contains the keys. ``fields.txt`` lists the fields that not all
    shards have.
    """

    part_bytes = 1 << 26

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Check the sample records and the class names."""
        check_class_names(plan.class_names)
        for record in plan.samples:
            self._check(to_arrays([record], [b""]))

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write a shard, or nothing if no record is readable."""
        found = list(records)
        if not found:
            return Written()
        keys = plan.index.raw_keys(np.array([record.index for record in found], np.int64))
        return Written(files=self._write(folder, part.number, to_arrays(found, keys)))

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """Write ``fields.txt`` if shards differ in fields, and the class names."""
        found = [self._fields(folder, summary) for summary in summaries if len(summary)]
        names: set[str] = set().union(*found)
        lacking = sorted(name for name in names if any(name not in fields for fields in found))
        if lacking:
            write_lines(folder / FIELDS_NAME, lacking)
        if plan.class_names is not None and "label" in names:
            write_lines(folder / CLASSES_NAME, plan.class_names)

    @abstractmethod
    def _check(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Raise ValueError for arrays of an unsupported type."""

    @abstractmethod
    def _write(
        self, folder: Path, number: int, arrays: Mapping[str, NDArray[Any]]
    ) -> tuple[str, ...]:
        """Write the arrays of a shard, and return the names of its files."""

    @abstractmethod
    def _fields(self, folder: Path, summary: PartSummary) -> set[str]:
        """Return the fields of a written shard."""
