"""Store the fields of records in columns of a table, and restore them unchanged.

Sample records decide the columns, so that independent parts have equal columns. A field
that does not fit (missing in the samples, or of another type or shape) goes into one more column,
of bytes. An empty value means that the record lacks the field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from penstock.core.arrays import read_npy, write_npy
from penstock.core.json_text import parse_json
from penstock.core.record_codec import pack_fields, unpack_fields
from penstock.core.sample import Record
from penstock.core.user_errors import is_trouble

Kind = Literal["file", "bytes", "text", "bool", "int", "float", "array", "npy", "json", "rest"]

PACKED = b"penstock"
"""Metadata key of the kinds of a packed table's columns."""
REST = "penstock_rest"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = ("key", "label", "index", "position", REST)
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class FieldColumn:
    """A field with its own column.

    Attributes:
        kind: ``file`` (an encoded image), ``bytes``, ``text``, ``bool``, ``int`` (of 64 bits),
            ``float``, ``array`` (one type; only the length of the first axis differs), ``npy`` (any
            array, as the bytes of a .npy file) or ``json``.
        dtype: The type of an ``array``, in NumPy's notation.
        inner: Lengths of all its axes except the first.
    """

    name: str
    kind: Kind
    dtype: str = ""
    inner: tuple[int, ...] = ()

    def fits(self, value: Any) -> bool:
        """Return whether this column can store a value."""
        if self.kind != "json":
            kind = _kind_of(self.name, value)
            if self.kind == "array":
                return kind == "npy" and _array_type(value) == (self.dtype, self.inner)
            return kind == self.kind and (kind != "int" or value in _INT64)
        return not isinstance(value, np.ndarray | bytes | bytearray | memoryview)

    def encode(self, value: Any) -> Any:
        """Encode a value for a table; arrays stay arrays."""
        if self.kind == "json":
            return json.dumps(value)
        return write_npy(value) if self.kind == "npy" else value


def plan_columns(samples: Sequence[Record]) -> tuple[FieldColumn, ...]:
    """Plan a column for each field of the samples, except keys and labels."""
    values: dict[str, list[Any]] = {}
    for record in samples:
        for name, value in record.fields.items():
            values.setdefault(name, []).append(_plain(value))
    taken: set[str] = set(_RESERVED)
    columns = []
    for name, found in values.items():
        # Some tables ignore the case of names.
        if name.lower() in taken or not _NAME.fullmatch(name):
            continue
        taken.add(name.lower())
        columns.append(_column(name, found))
    return tuple(columns)


def split_fields(
    fields: Mapping[str, Any], columns: Sequence[FieldColumn], *, key: str
) -> dict[str, Any]:
    """Return the values of a record by column, with the fields that do not fit as `REST`.

    Raises:
        ValueError: A field's type is unsupported.
    """
    rest = {name: _plain(value) for name, value in fields.items() if name != "label"}
    values: dict[str, Any] = {}
    for column in columns:
        if column.name in rest and column.fits(rest[column.name]):
            try:
                values[column.name] = column.encode(rest[column.name])
                del rest[column.name]
            except (TypeError, ValueError):  # reported below
                continue
    if rest:
        # The slash keeps names from having a special meaning in packed records.
        values[REST] = pack_fields({f"/{n}": value for n, value in rest.items()}, key=key)[0]
    return values


def restore(value: Any, kind: Kind) -> Any:
    """Restore a value from a column of any kind except `REST`.

    Raises:
        ValueError: It is damaged.
    """
    if kind == "npy":
        return read_npy(bytes(value))
    if kind == "bool":
        return bool(value)
    if kind != "json":
        return value
    try:
        return parse_json(value)
    except (ValueError, TypeError):
        raise ValueError("is no JSON") from None


def restore_rest(value: Any, wanted: Collection[str] | None) -> dict[str, Any]:
    """Restore the fields without a column from a value of `REST`; `wanted` None: all.

    Raises:
        ValueError: It is damaged.
    """
    try:
        packed = unpack_fields(bytes(value), 0)
        if not all(name.startswith("/") for name in packed):
            raise KeyError("image")
        fields = {name[1:]: field for name, field in packed.items()}
    except Exception as error:  # damage to header, numbers or bytes raises many types
        if is_trouble(error):
            raise
        raise ValueError(f"is damaged ({type(error).__name__})") from None
    return {name: field for name, field in fields.items() if wanted is None or name in wanted}


def _column(name: str, values: Sequence[Any]) -> FieldColumn:
    kinds = {_kind_of(name, value) for value in values}
    if len(kinds) > 1:
        return FieldColumn(name, "file" if "file" in kinds else "json")
    kind = kinds.pop()
    if kind == "npy":
        types = {_array_type(value) for value in values}
        if len(types) == 1 and None not in types:
            dtype, inner = types.pop()  # type: ignore[misc]
            return FieldColumn(name, "array", dtype, inner)
    return FieldColumn(name, kind)


def _kind_of(name: str, value: Any) -> Kind:
    if isinstance(value, bytes):
        return "file" if name == "image" else "bytes"
    if isinstance(value, np.ndarray):
        return "npy"
    if isinstance(value, str):
        # A lone surrogate, which stands for an invalid byte, is not valid UTF-8 either.
        return "text" if value.isascii() or not re.search("[\ud800-\udfff]", value) else "json"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int"
    return "float" if isinstance(value, float) else "json"


def _array_type(array: Any) -> tuple[str, tuple[int, ...]] | None:
    """Return type and inner axes of an array that lists of numbers can represent, or None."""
    if array.dtype.kind not in "biuf" or array.ndim == 0 or 0 in array.shape[1:]:
        return None
    if array.dtype.itemsize > 8:
        return None
    return array.dtype.newbyteorder("<").str, array.shape[1:]


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return bytes(value) if isinstance(value, bytearray | memoryview) else value
