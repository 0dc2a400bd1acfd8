"""Stack the fields of records into arrays, to be written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.arrays import check_field, field_name, field_place
from penstock.core.sample import Record
from penstock.datasets.records.labels import images_fault

_NUMBERS = "?bBhHiIlLqQefdFD"
"""Codes of the dtypes that a tensor can hold."""


def stacked(records: Sequence[Record], *, texts: bool = False) -> dict[str, NDArray[Any]]:
    """Stack the fields of records into arrays [n, ...] by name; numbers become 64 bits wide.

    With `texts`, also texts and image files, as objects. ValueError if records differ in fields,
    types or shapes, or have other values.
    """
    first, arrays = records[0], dict[str, NDArray[Any]]()
    names = {name for record in records for name in record.fields}
    for name in sorted(names, key=field_place):
        check_field(name, f"the field {name!r}", where="pack")
        if field_name(name) != name:
            raise ValueError(
                f"pack: the field {name!r} would be read as {field_name(name)!r}; rename it with "
                f"dataset.keys"
            )
        form = _form(name, first.fields.get(name), texts)
        for record in records:
            if form is None or _form(name, record.fields.get(name), texts) != form:
                shown = " and ".join(dict.fromkeys(_shown(r, name) for r in (first, record)))
                raise ValueError(
                    f"pack: the field {name!r} is {shown}; the rows of an array are numbers of one "
                    f"type and shape: pack it as lmdb, drop it, or, for images of one size in "
                    f"files, give pack.raw=1"
                )
        values: list[Any] = [record.fields[name] for record in records]
        arrays[name] = array = np.array(values, object if form in (str, bytes) else None)
        if name == "image" and form is not bytes:
            if fault := images_fault(array.shape, array.dtype.str, remedy="convert it"):
                raise ValueError(f"pack: {fault}")
    return arrays


def _form(name: str, value: Any, texts: bool) -> Any:
    """Return the type and shape of a value; None if no array round-trips it."""
    if isinstance(value, np.ndarray):
        is_plain = value.ndim and value.size and value.dtype.char in _NUMBERS
        return (value.dtype, value.shape) if is_plain else None
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return None
    if texts and isinstance(value, str):  # files hold valid Unicode without NUL
        return None if re.search("[\0\ud800-\udfff]", value) else str
    is_file = texts and name == "image" and isinstance(value, bytes)
    return type(value) if is_file or isinstance(value, bool | int | float) else None


def _shown(record: Record, name: str) -> str:
    value: Any = record.fields.get(name)
    if hasattr(value, "dtype"):
        return f"{value.dtype} {list(value.shape)} in {record.key!r}"
    return f"{'missing' if value is None else f'a {type(value).__name__}'} in {record.key!r}"
