"""Convert a driver's values to keys, labels and fields."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import numpy as np

from penstock.datasets.columnar.images import float_of
from penstock.datasets.records.labels import LabelIds, column_ids

# ``whole``: integers or bools without nulls; ``nullable``: with nulls; ``value``: unchanged.
Kind = Literal["float", "whole", "nullable", "text", "value", "image"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)


def plain(value: Any) -> Any:
    """Convert a driver's value to a number, text, bytes, list, array or dict.

    Times become microseconds since 1970, and dates days. Lists of numbers become arrays.
    """
    match value:
        case None | bool() | int() | float() | str() | bytes() | dict():
            return value
        case Decimal():
            return float(value)
        case datetime():
            return ((value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH) // _US
        case date():
            return (value - _EPOCH.date()).days
        case UUID():
            return str(value)
        case list():
            numbers = all(isinstance(item, int | float) for item in value)
            return np.array(value) if value and numbers else value
    raise ValueError(
        f"is of the type {type(value).__name__}, which no field can be; cast it in a query, or "
        f"leave it out by dataset.storage.columns"
    )


def kind_of(value: Any, *, nulls: bool) -> Kind:
    """Return the kind of a column, from a value of its widest type and whether it has nulls."""
    if isinstance(value := plain(value), int):
        return "nullable" if nulls else "whole"
    if isinstance(value, float):
        return "float"
    return "text" if isinstance(value, str) else "value"


def convert(value: Any, kind: Kind) -> Any:
    """Convert a field's value; a null becomes NaN among numbers, else None."""
    value = plain(value)
    if kind == "whole" and not isinstance(value, int):
        raise ValueError(f"is {value!r:.50} now, and held whole numbers alone when it was listed")
    if kind in ("float", "nullable"):
        return float_of(value)
    return str(value) if kind == "text" and isinstance(value, int | float) else value


def key_bytes(value: Any) -> tuple[bytes, str]:
    """Encode a key as bytes; return them with the key's type for `key_value`."""
    match plain(value):
        case str() as text:
            return text.encode(), "str"
        case bytes() as content:
            return content, "bytes"
        case int() as number:
            return b"%d" % number, "int"
    said = f"the key is {value!r:.100}, expected a text, bytes or a whole number"
    raise ValueError(f"{said}; fill it in, or take another column")


def key_value(key: bytes, kind: str) -> int | str | bytes:
    """Decode a key of `key_bytes`."""
    return int(key) if kind == "int" else key.decode() if kind == "str" else key


def label_ids(labels: Sequence[Any], classes: Sequence[str] | None, *, where: str) -> LabelIds:
    """Return the class ids of a column of whole numbers or texts; see `column_ids`."""
    if all(isinstance(label, int) for label in labels):
        return column_ids(np.array(labels), classes=classes, where=where)
    names = ["" if label is None else str(label) for label in labels]
    return column_ids(names, classes=classes, where=where)
