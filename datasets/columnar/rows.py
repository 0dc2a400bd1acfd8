"""Values in the rows of a database as records have them: keys, labels, images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.datasets.files.access import read_file
from penstock.datasets.files.data_files import safe_path
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


def image_bytes(value: Any, root: str, *, follow_symlinks: bool, max_bytes: int) -> bytes:
    """Give the image of a row: the bytes that stand there, or those of the file at a path.

    Args:
        value: What stands in the column.
        root: The folder of the files.
        follow_symlinks: Whether they may lie elsewhere by a link.
        max_bytes: What a file may have.

    Raises:
        ValueError: It is neither, or leads out of the folder.
        penstock.datasets.files.access.MissingFile: There is no such file.
        OSError: The disk has trouble that did not pass.
    """
    if type(value) is bytes:
        return value
    if not isinstance(value, str):
        what = "has no image" if value is None else f"has {value!r:.50} for an image"
        raise ValueError(f"its row {what}, expected its bytes, or the path of a file")
    path = safe_path(root, value, follow_symlinks=follow_symlinks)
    return read_file(path, root=root, max_bytes=max_bytes)
