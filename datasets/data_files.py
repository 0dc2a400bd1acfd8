"""The files of a data set that lies in several: a file, a folder of them, or a pattern."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass

from datasets.scan import scan_files


@dataclass(frozen=True, slots=True)
class DataFiles:
    """Files in the order of their names.

    Attributes:
        root: The folder that the names are relative to.
        names: Paths below it.
        marks: Size and mtime in ns of each: whether a file is the one that was looked at.
    """

    root: str
    names: tuple[str, ...]
    marks: tuple[tuple[int, int], ...]

    @property
    def paths(self) -> list[str]:
        """Absolute paths."""
        return [os.path.join(self.root, name) for name in self.names]

    @property
    def recipe(self) -> list[list[str | int]]:
        """Names and marks as JSON holds them."""
        return [[name, *mark] for name, mark in zip(self.names, self.marks, strict=True)]


def find_data_files(path: str, *, endings: Sequence[str], where: str) -> DataFiles:
    """The files that `path` names.

    Args:
        path: A file, whatever its name; a folder, in which files with `endings` are looked for
            at any depth, hidden ones left out; or a pattern with ``*``, ``?``, ``[]``, ``**``.
        endings: Such as ``.parquet``.
        where: The storage, for messages.

    Raises:
        ValueError: There is none.
    """
    if os.path.isdir(path):
        root = path
        names = [os.fsdecode(key) for key in scan_files(path, endings=endings).keys]
    elif os.path.exists(path):
        root, name = os.path.split(path)
        names = [name]
    elif glob.has_magic(path):
        root = _fixed_part(path)
        found = glob.glob(path, recursive=True)
        names = sorted(os.path.relpath(file, root) for file in found if os.path.isfile(file))
    else:
        raise ValueError(f"{where}: nothing there; set dataset.storage.path to your data")
    if not names:
        raise ValueError(
            f"{where}: no file found; expected a file, a folder of {' or '.join(endings)} files, "
            f"or a pattern such as train-*{endings[0]}; set dataset.storage.path"
        )
    try:
        status = [os.stat(os.path.join(root, name)) for name in names]
    except OSError as error:
        raise ValueError(f"{where}: {error.filename}: {error.strerror}") from error
    return DataFiles(root, tuple(names), tuple((s.st_size, s.st_mtime_ns) for s in status))


def _fixed_part(pattern: str) -> str:
    """The folder above the first part of a pattern that is not fixed."""
    folder = os.path.dirname(pattern)
    while glob.has_magic(folder):
        folder = os.path.dirname(folder)
    return folder
