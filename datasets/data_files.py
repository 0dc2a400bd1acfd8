"""The files of a data set that lies in several: a file, a folder of them, or patterns."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass

from datasets.braces import expand_braces
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


def find_data_files(path: str | Sequence[str], *, endings: Sequence[str], where: str) -> DataFiles:
    """The files that `path` names.

    Args:
        path: A file, whatever its name; a folder, in which files with `endings` are looked for
            at any depth, hidden ones left out; or a pattern with ``*``, ``?``, ``[]``, ``**``, or
            with ``{000..099}`` or ``{a,b}``, which stands for files that must all be there; or
            several of these.
        endings: Such as ``.parquet``.
        where: The storage, for messages.

    Raises:
        ValueError: There is none, one is missing, or is named twice.
    """
    found: dict[str, None] = {}
    roots = []
    for pattern in [path] if isinstance(path, str) else path:
        for named in _all_named(pattern, where):
            root, names = _files_at(named, endings, where)
            roots.append(root)
            for file in (os.path.join(root, name) for name in names):
                if file in found:
                    raise ValueError(f"{where}: {file} is named twice; name every file once")
                found[file] = None
    if not found:
        raise ValueError(
            f"{where}: no file found; expected a file, a folder of {' or '.join(endings)} files, "
            f"or a pattern such as train-*{endings[0]}; set dataset.storage.path"
        )
    root = roots[0] if len(roots) == 1 else os.path.commonpath(roots)
    names = sorted(os.path.relpath(file, root) for file in found)
    try:
        status = [os.stat(os.path.join(root, name)) for name in names]
    except OSError as error:
        raise ValueError(f"{where}: {error.filename}: {error.strerror}") from error
    return DataFiles(root, tuple(names), tuple((s.st_size, s.st_mtime_ns) for s in status))


def _all_named(pattern: str, where: str) -> list[str]:
    """What the braces of a pattern stand for.

    Raises:
        ValueError: Some of the files are missing.
    """
    if os.path.lexists(pattern):
        return [pattern]
    named = expand_braces(pattern)
    if len(named) > 1:
        missing = [name for name in named if not glob.has_magic(name) and not os.path.exists(name)]
        if missing:
            raise ValueError(
                f"{where}: {len(missing):,} of {len(named):,} files are missing, the first is "
                f"{missing[0]}; copy them there, or set dataset.storage.path to those you have"
            )
    return named


def _files_at(path: str, endings: Sequence[str], where: str) -> tuple[str, list[str]]:
    """A folder, and the names below it of the files that `path`, without braces, names."""
    if os.path.isdir(path):
        return path, [os.fsdecode(key) for key in scan_files(path, endings=endings).keys]
    if os.path.exists(path):
        root, name = os.path.split(path)
        return root, [name]
    if not glob.has_magic(path):
        raise ValueError(f"{where}: nothing there; set dataset.storage.path to your data")
    root = _fixed_part(path)
    found = glob.glob(path, recursive=True)
    return root, [os.path.relpath(file, root) for file in found if os.path.isfile(file)]


def _fixed_part(pattern: str) -> str:
    """The folder above the first part of a pattern that is not fixed."""
    folder = os.path.dirname(pattern)
    while glob.has_magic(folder):
        folder = os.path.dirname(folder)
    return folder
