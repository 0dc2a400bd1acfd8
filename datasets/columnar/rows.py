"""Values in the rows of a database as records have them: keys, labels, images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.datasets.records.labels import column_ids

FieldType = Literal["array", "json"]
"""What a column of bytes or texts holds, where a config says it."""


def key_bytes(value: Any) -> tuple[bytes, int]:
    """Encode a key as bytes, and its type for `key_value`.

    Raises:
        ValueError: It is missing, or a float.
    """
    if isinstance(value, str):
        return value.encode(), 1
    if isinstance(value, bytes):
        return value, 2
    if isinstance(value, int):
        return b"%d" % value, 0
    what = "missing" if value is None else f"{value!r}"
    raise ValueError(f"the key is {what}, expected a text, bytes or a whole number; fill it in, "
                     f"or take another column")  # fmt: skip


def key_value(key: bytes, kind: int) -> int | str | bytes:
    """Decode a key of `key_bytes`."""
    return int(key) if kind == 0 else key.decode() if kind == 1 else key


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
