"""Write records into HDF5 files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Writer
from penstock.core.parts import PackPlan, Part, Written
from penstock.core.record_codec import pack_fields
from penstock.core.registry import register
from penstock.core.sample import Record, RecordError
from penstock.datasets.storages.hdf5.file import need_h5py
from penstock.datasets.storages.hdf5.samples import (
    CLASS_NAMES,
    FIELD,
    KEY_NAMES,
    MARK,
    RESERVED,
)

_OURS = frozenset((*KEY_NAMES, *CLASS_NAMES, *RESERVED))
_NUMBERS = {bool: np.bool_, int: np.int64, float: np.float64}


@register("writer", "hdf5")
class Hdf5Writer(Writer):
    """A folder of files ``part-00000-of-00012.h5``, each complete by itself.

    A field is a data set of its name with a row for each record. Numbers, texts, and arrays of
    one shape and type stay as they are, encoded images are rows of variable length, and all else
    is rows of packed bytes. ``keys`` and ``class_names`` are texts. Nothing is compressed, so that
    arrays can be mapped.
    """

    version = 2
    part_records = 8192
    part_bytes = 1 << 27

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Check that HDF5 can hold the samples."""
        try:
            need_h5py()
        except RecordError as error:
            raise ValueError(f"pack.to=hdf5: {error}") from None
        for record in plan.samples:
            _check_fields(record.fields, key=record.key)

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write a file; no file for a part without records."""
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
        # Written in memory first: the library hangs on a full disk.
        whole = io.BytesIO()
        with h5py.File(whole, "w") as file:
            file.attrs[MARK] = np.bytes_("packed")
            file["keys"] = np.array(plan.index.raw_keys(np.array(rows)), object).astype(text)
            if plan.class_names is not None:
                file.create_dataset("class_names", data=list(plan.class_names), dtype=text)
            for field in sorted({field: None for fields in found for field in fields}):
                _write_field(file, field, [fields.get(field, _MISSING) for fields in found])
        (folder / name).write_bytes(whole.getbuffer())
        return Written(files=(name,))


_MISSING = object()


def _check_fields(fields: dict[str, Any], *, key: str) -> None:
    """Raise ValueError for fields that HDF5 cannot store, or not under their names."""
    for name in fields:
        if name in _OURS or not FIELD.fullmatch(name):
            raise ValueError(
                f"pack: {key!r}: hdf5 cannot hold a field {name!r}, expected a name of letters, "
                f"digits and _ that is none of {', '.join(sorted(_OURS))}; rename it: dataset.keys"
            )
    pack_fields(fields, key=key)


def _write_field(file: Any, name: str, values: list[Any]) -> None:
    """Write a field of all records, as numbers, arrays, texts, bytes, or packed values."""
    import h5py

    kinds = {type(value) for value in values}
    kind = kinds.pop() if len(kinds) == 1 else object
    if kind in _NUMBERS and (kind is not int or all(-(1 << 63) <= v < 1 << 63 for v in values)):
        file[name] = np.array(values, _NUMBERS[kind])
    elif kind is np.ndarray and _are_alike(values):
        file[name] = np.stack(values)
    elif kind is str and all(map(_is_text, values)):
        file.create_dataset(name, data=values, dtype=h5py.string_dtype())
    else:
        holds, rows = "bytes", values
        if kind not in (bytes, bytearray, memoryview):
            holds = "packed"
            rows = [
                b"" if value is _MISSING else pack_fields({"value": value}, key=name)[0]
                for value in values
            ]
        written = file.create_dataset(name, (len(rows),), h5py.vlen_dtype(np.uint8))
        written.attrs[MARK] = np.bytes_(holds)
        for number, row in enumerate(rows):
            written[number] = np.frombuffer(row, np.uint8)


def _are_alike(arrays: list[NDArray[Any]]) -> bool:
    """Return whether arrays can be the rows of one array of numbers."""
    first = arrays[0]
    is_row = first.dtype.kind in "biufc" and first.ndim > 0 and first.size > 0
    return is_row and all((a.dtype, a.shape) == (first.dtype, first.shape) for a in arrays)


def _is_text(value: str) -> bool:
    """Return whether HDF5 round-trips a text: it is valid Unicode without NUL."""
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
