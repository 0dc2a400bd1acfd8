"""Records into HDF5 files."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.parts import PackPlan, Part, PartSummary, Written, raw_keys
from penstock.core.record_codec import pack_fields
from penstock.core.registry import register
from penstock.core.sample import Record
from penstock.datasets.storages.hdf5.objects import (
    CLASS_NAMES,
    FIELD,
    KEY_NAMES,
    MISSING_ENDING,
    PACKED,
    SHAPE_ENDING,
    Refused,
    need_h5py,
)

_OURS = frozenset((*KEY_NAMES, *CLASS_NAMES, "index", "position", "epoch", "valid"))
_NUMBERS = {bool: np.bool_, int: np.int64, float: np.float64}
_NOTHING = object()


@register("writer", "hdf5")
class Hdf5Writer:
    """A folder of files ``part-00000-of-00012.h5``, each whole by itself.

    A field is a dataset of its name with a row per record: arrays of one shape and type as they
    are, encoded images and arrays of other shapes as lists, the shapes beside; see
    `_write_fields`. ``keys`` and ``class_names`` are texts. Nothing is compressed,
    so that arrays can be read where they lie.
    """

    version = 1
    part_records = 8192
    part_bytes = 1 << 27
    cannot_hold: frozenset[str] = frozenset()
    storage_arguments: dict[str, Any] = {}  # noqa: RUF012

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Check that the samples can be held."""
        try:
            need_h5py()
        except Refused as error:
            raise ValueError(f"pack.to=hdf5: {error}") from None
        for record in plan.samples:
            _check_fields(record.fields, key=record.key)

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write a file; none for a part without records."""
        import h5py

        found: list[dict[str, Any]] = []
        rows = []
        for record in records:
            _check_fields(record.fields, key=record.key)
            found.append(record.fields)
            rows.append(record.index)
        if not found:
            return Written()
        labelled = sum("label" in fields for fields in found)
        if labelled not in (0, len(found)):
            raise ValueError(
                f"pack.to=hdf5: {labelled} of {len(found)} records have a label; all or none"
            )
        name = f"part-{part.number:05d}-of-{len(plan.parts):05d}.h5"
        text = h5py.string_dtype()
        # Put together in memory: the library does not come back from a disk that is full.
        whole = io.BytesIO()
        with h5py.File(whole, "w") as file:
            file.attrs[PACKED] = "1"
            file["keys"] = np.array(raw_keys(plan.index, np.array(rows)), object).astype(text)
            if plan.class_names is not None:
                file.create_dataset("class_names", data=list(plan.class_names), dtype=text)
            _write_fields(file, found)
        (folder / name).write_bytes(whole.getbuffer())
        return Written(files=(name,))

    def join_part(self, folder: Path, plan: PackPlan, summary: PartSummary) -> None:
        """Nothing: a part is a file of the result."""

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """Nothing: every file says what is in it."""


def _check_fields(fields: dict[str, Any], *, key: str) -> None:
    """Raise ValueError for fields that cannot be held under their names, or at all."""
    for name in fields:
        if name in _OURS or not FIELD.fullmatch(name):
            raise ValueError(
                f"pack: {key!r}: hdf5 cannot hold a field {name!r}, expected a name of letters, "
                f"digits and _ that is none of {', '.join(sorted(_OURS))}; rename it: dataset.keys"
            )
    pack_fields(fields, key=key)


def _write_fields(file: Any, records: Sequence[dict[str, Any]]) -> None:
    """Write the fields of records, a dataset for each, a row for each record.

    Arrays of one shape and type are the rows of an array, and so are numbers. Else a row is a
    list: of numbers, with its shape beside; or of bytes, whose attribute says whether they are
    ``bytes``, ``text``, ``json``, or ``any``, a value packed by itself. Beside a field that some
    records lack stands which.

    Args:
        file: The open ``h5py.File``.
        records: The fields of each record.
    """
    for name in sorted({name: None for record in records for name in record}):
        values = [record.get(name, _NOTHING) for record in records]
        missing = np.array([value is _NOTHING for value in values])
        if missing.any():
            file[f"{name}{MISSING_ENDING}"] = missing
        _write_field(file, name, values, [v for v in values if v is not _NOTHING])


def _write_field(file: Any, name: str, values: list[Any], present: list[Any]) -> None:
    """Write a field; `present` are those of its values that are there."""
    kinds = {type(value) for value in present}
    kind = kinds.pop() if len(kinds) == 1 else object
    if kind in (bytes, bytearray, memoryview):
        _write_bytes(file, name, "bytes", values, bytes)
    elif kind in _NUMBERS and (kind is not int or all(map(_fits, present))):
        numbers = [0 if value is _NOTHING else value for value in values]
        file[name] = np.array(numbers, _NUMBERS[kind])
    elif kind is str and all(_is_text(value) for value in present):
        _write_bytes(file, name, "text", values, str.encode)
    elif kind in (dict, list, tuple, type(None)):
        _write_bytes(file, name, "json", values, lambda value: json.dumps(value).encode())
    elif kind is np.ndarray and _write_arrays(file, name, values, present):
        pass
    else:
        _write_bytes(file, name, "any", values, lambda v: pack_fields({"value": v}, key=name)[0])


def _write_arrays(file: Any, name: str, values: list[Any], present: list[NDArray[Any]]) -> bool:
    """Write arrays of one type; False where they are not."""
    dtype, axes = present[0].dtype, present[0].ndim
    if dtype.kind not in "biufc" or any(a.dtype != dtype or a.ndim != axes for a in present):
        return False
    shapes = {array.shape for array in present}
    if len(shapes) == 1 and axes and present[0].size:
        rows = np.zeros((len(values), *present[0].shape), dtype)
        for row, value in zip(rows, values, strict=True):
            if value is not _NOTHING:
                row[...] = value
        file[name] = rows
        return True
    if dtype.kind not in "iuf" or not axes or name == "image":
        return False
    lists = [np.zeros(0, dtype) if v is _NOTHING else v.reshape(-1) for v in values]
    _write_lists(file, name, dtype, lists).attrs[PACKED] = json.dumps({"holds": "array"})
    if axes > 1:
        file[f"{name}{SHAPE_ENDING}"] = np.array(
            [(0,) * axes if value is _NOTHING else value.shape for value in values], np.int64
        )
    return True


def _write_bytes(
    file: Any, name: str, holds: str, values: list[Any], encode: Callable[[Any], bytes]
) -> None:
    lists = [
        np.frombuffer(b"" if value is _NOTHING else encode(value), np.uint8) for value in values
    ]
    written = _write_lists(file, name, np.dtype(np.uint8), lists)
    written.attrs[PACKED] = json.dumps({"holds": holds})


def _write_lists(file: Any, name: str, dtype: np.dtype[Any], lists: list[NDArray[Any]]) -> Any:
    import h5py

    written = file.create_dataset(name, (len(lists),), h5py.vlen_dtype(dtype))
    for row, each in enumerate(lists):
        written[row] = each
    return written


def _fits(value: int) -> bool:
    return -(1 << 63) <= value < 1 << 63


def _is_text(value: str) -> bool:
    """Whether a text has bytes: half of a surrogate pair has none."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
