"""Values of an SQLite file as keys, labels and fields: SQLite types values, not columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from datasets.annotations.label_columns import column_ids
from datasets.formats.npy_bytes import read_npy
from datasets.formats.sqlite_files import BadText

FieldType = Literal["array", "json"]
Kind = Literal["int", "float", "str", "value", "array", "json"]
"""What a column's values become; ``value``: as they are."""


def find_kind(types: set[str]) -> Kind:
    """What values become that have these types, as in a CSV file.

    Numbers stay numbers where all are, and whole if none is missing; numbers among texts are text.
    """
    if types == {"integer"}:
        return "int"
    if types - {"null"} and types <= {"integer", "real", "null"}:
        return "float"
    if "text" in types and "blob" not in types:
        return "str"
    return "value"


def convert(value: Any, kind: Kind) -> Any:
    """A field's value: a missing one is NaN among numbers, else None.

    Raises:
        ValueError: It cannot be one of its kind.
    """
    if isinstance(value, BadText):
        raise ValueError("is no UTF-8")
    if kind == "float" and not isinstance(value, str | bytes):
        return float("nan") if value is None else float(value)
    if value is None and kind != "int":
        return None
    if kind == "array":
        return _read_array(value)
    if kind == "json":
        return _read_json(value)
    if kind == "str" and isinstance(value, int | float):
        return str(value)
    if kind in ("int", "float") and type(value) is not int:
        raise ValueError(f"is {value!r:.50}, and was a number when the index was made")
    return value


def key_bytes(value: Any) -> tuple[bytes, int]:
    """A key as bytes, and its type for `key_value`.

    Raises:
        ValueError: It is missing, or a float.
    """
    if isinstance(value, str):
        return value.encode(), 1
    if isinstance(value, BadText):
        return bytes(value), 3
    if isinstance(value, bytes):
        return value, 2
    if isinstance(value, int):
        return b"%d" % value, 0
    what = "missing" if value is None else f"{value!r}"
    raise ValueError(f"the key is {what}, expected a text, bytes or a whole number; fill it in, "
                     f"or take another column")  # fmt: skip


def key_value(key: bytes, kind: int) -> tuple[str, Any]:
    """A key as SQL and the value that stands for the question mark in it."""
    if kind == 3:  # which cannot be given as a text
        return "CAST(? AS TEXT)", key
    return "?", int(key) if kind == 0 else key.decode() if kind == 1 else key


def label_ids(
    labels: Sequence[Any],
    classes: Sequence[str] | None,
    *,
    names: Sequence[str] | None = None,
    where: str,
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Class ids of a column's values: whole numbers or texts; see `column_ids`.

    Raises:
        ValueError: One is missing, or of another type than the first.
    """
    kind = int if isinstance(labels[0], int) else str
    for n, label in enumerate(labels):
        if not isinstance(label, kind):
            what = "missing" if label is None else f"{label!r:.50}"
            raise ValueError(
                f"{where}: the label of record {n} is {what}, expected whole numbers or texts, the "
                f"same in every row; fill it in, or leave such rows out by a query"
            )
    values = np.array(labels) if kind is int else labels
    return column_ids(values, names=names, classes=classes, where=where)


def _read_array(value: Any) -> NDArray[Any]:
    if not isinstance(value, bytes):
        raise ValueError(f"is {value!r:.50}, expected the bytes of a .npy file")
    return read_npy(value)


def _read_json(value: Any) -> Any:
    try:
        return json.loads(value)
    except (ValueError, TypeError, RecursionError):
        raise ValueError("is no JSON") from None
