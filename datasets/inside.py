"""Paths that data names: they stay inside the data's own folder."""

from __future__ import annotations

import os


def inside(root: str, name: str, *, follow_symlinks: bool) -> str:
    """The path of the file `name` below the folder `root`.

    Args:
        root: An absolute path.
        name: A relative path, as it stands in the data.
        follow_symlinks: Whether a link on the way may lead out of the folder.

    Raises:
        ValueError: It leads elsewhere.
    """
    refuse_escape(name)
    path = os.path.join(root, name)
    if not follow_symlinks:
        top = os.path.realpath(root)
        if os.path.commonpath((top, os.path.realpath(path))) != top:
            raise ValueError(f"{name!r} leads out of its folder by a link")
    return path


def refuse_escape(name: str) -> None:
    """Raise ValueError for a path that is absolute or climbs out of the folder it is meant for."""
    if os.path.isabs(name) or "\0" in name or os.path.normpath(name).split(os.sep)[0] == os.pardir:
        raise ValueError(f"{name!r} leads out of its folder")
