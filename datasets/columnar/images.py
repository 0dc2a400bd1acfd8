"""Read the image of a row: its bytes, or the file at its path."""

from __future__ import annotations

from typing import Any

from penstock.datasets.files.access import read_file
from penstock.datasets.files.data_files import safe_path


def image_bytes(value: Any, root: str, *, follow_symlinks: bool, max_bytes: int) -> bytes:
    """Return the image of a row.

    Args:
        value: Its bytes, or the path of its file.
        root: The folder of the files.
        follow_symlinks: Whether a link may leave the folder.
        max_bytes: The largest size of a file.

    Raises:
        ValueError: It is neither, or leaves the folder.
        penstock.datasets.files.access.MissingFile: The file is missing.
        OSError: The disk has trouble that did not pass.
    """
    if type(value) is bytes:
        return value
    if not isinstance(value, str):
        what = "has no image" if value is None else f"has {value!r:.50} for an image"
        raise ValueError(f"its row {what}, expected its bytes, or the path of a file")
    path = safe_path(root, value, follow_symlinks=follow_symlinks)
    return read_file(path, root=root, max_bytes=max_bytes)
