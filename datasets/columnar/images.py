"""Convert values of a row, such as an image or its path, and check the names of columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from penstock.core.sample import RecordError, too_large
from penstock.datasets.files.access import read_file
from penstock.datasets.files.data_files import safe_path

_RESERVED = ("index", "key", "position")


def check_fields(fields: Iterable[str], taken: Collection[str] = ()) -> None:
    """Raise ValueError for a column whose name samples, or the fields `taken`, use."""
    for name in fields:
        if name in _RESERVED or name in taken:
            raise ValueError(
                f"column {name!r} has a name that samples use for something else; leave it out "
                f"by dataset.storage.columns, or type dataset.storage.key_column={name}"
            )


def float_of(value: float | None) -> float:
    """Return a number as a float, NaN for None; ValueError for an integer that it would round."""
    number = float("nan") if value is None else float(value)
    if value is not None and isinstance(value, int) and number != value:
        raise ValueError(
            f"is {value}, which a float would round; store the column as text, or list the other "
            f"columns in dataset.storage.columns"
        )
    return number


def image_bytes(value: Any, root: str, *, max_bytes: int) -> bytes:
    """Return the image of a row: its bytes, or the file at its path; ValueError for others."""
    if type(value) is bytes:
        if len(value) > max_bytes:
            raise RecordError(too_large(len(value), max_bytes))
        return value
    if not isinstance(value, str):
        what = "lacks an image" if value is None else f"has {value!r:.50} for an image"
        raise ValueError(f"its row {what}, expected its bytes, or the path of a file")
    return read_file(safe_path(root, value), root=root, max_bytes=max_bytes)
