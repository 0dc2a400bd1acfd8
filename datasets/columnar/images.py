"""Read the image of a row: its bytes, or the file at its path."""

from __future__ import annotations

from typing import Any

from penstock.datasets.files.access import read_file
from penstock.datasets.files.data_files import safe_path


def image_bytes(value: Any, root: str, *, follow_symlinks: bool, max_bytes: int) -> bytes:
    """Return the image of a row from its bytes, or from the file at its path below `root`.

    Raises:
        ValueError: The value is neither, or its path leaves the folder.
        penstock.datasets.files.access.MissingFile: The file is missing.
        OSError: A disk error persisted.
    """
    if type(value) is bytes:
        return value
    if not isinstance(value, str):
        what = "lacks an image" if value is None else f"has {value!r:.50} for an image"
        raise ValueError(f"its row {what}, expected its bytes, or the path of a file")
    path = safe_path(root, value, follow_symlinks=follow_symlinks)
    return read_file(path, root=root, max_bytes=max_bytes)
