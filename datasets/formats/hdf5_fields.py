"""Fields of records as datasets of an HDF5 file, in the most open form that holds them all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.formats.hdf5_objects import CLASS_NAMES, KEY_NAMES, MISSING_ENDING, PACKED
from datasets.formats.hdf5_objects import SHAPE_ENDING as _SHAPE
from datasets.formats.packed_fields import pack_fields

_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = frozenset((*KEY_NAMES, *CLASS_NAMES, "index", "position", "epoch", "valid"))
_NUMBERS = {bool: np.bool_, int: np.int64, float: np.float64}
_NOTHING = object()


def check_fields(fields: dict[str, Any], *, key: str) -> None:
    """Raise ValueError for fields that cannot be held under their names, or at all."""
    for name in fields:
        if name in _OURS or not _FIELD.fullmatch(name):
            raise ValueError(
                f"pack: {key!r}: hdf5 cannot hold a field {name!r}, expected a name of letters, "
                f"digits and _ that is none of {', '.join(sorted(_OURS))}; rename it: dataset.keys"
            )
    pack_fields(fields, key=key)


def write_fields(file: Any, records: Sequence[dict[str, Any]]) -> None:
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
        file[f"{name}{_SHAPE}"] = np.array(
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
