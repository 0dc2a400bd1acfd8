"""Folders that the ``save_to_disk`` of the public hub's package wrote: which files, in which order.

A data set is a folder with ``state.json``, which names its ``data-*.arrow``; one with
``dataset_dict.json`` holds such a folder for every split.
"""

from __future__ import annotations

import json
import os
from typing import Any

from datasets.data_files import DataFiles


def saved_files(folder: str, *, where: str) -> DataFiles | None:
    """The files of a saved data set, or None if `folder` is none.

    Args:
        folder: Any folder.
        where: The storage, for messages.

    Raises:
        ValueError: It is damaged, or holds several splits.
    """
    if os.path.isfile(os.path.join(folder, "dataset_dict.json")):
        splits = _read_json(folder, "dataset_dict.json", "splits", where=where)
        raise ValueError(
            f"{where}: holds the splits {', '.join(map(str, splits))}; set dataset.storage.path to "
            f"the folder of one of them"
        )
    if not os.path.isfile(os.path.join(folder, "state.json")):
        return None
    entries = _read_json(folder, "state.json", "_data_files", where=where)
    names, marks = [], []
    for entry in entries:
        name = entry.get("filename") if isinstance(entry, dict) else None
        if not isinstance(name, str) or name != os.path.basename(name) or name in ("", ".", ".."):
            raise ValueError(
                f"{where}: state.json names the file {name!r}, expected a name in this folder"
            )
        try:
            status = os.stat(os.path.join(folder, name))
        except OSError as error:
            raise ValueError(
                f"{where}: state.json names {name!r}: {error.strerror}; copy the folder again"
            ) from error
        names.append(name)
        marks.append((status.st_size, status.st_mtime_ns))
    if not names:
        raise ValueError(f"{where}: state.json names no file; nothing to read")
    return DataFiles(folder, tuple(names), tuple(marks))


def _read_json(folder: str, name: str, item: str, *, where: str) -> list[Any]:
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            value = json.load(file)[item]
        if not isinstance(value, list):
            raise TypeError(f"{item} is no list")
        return value
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{where}: {name} is damaged ({type(error).__name__}: {error}); copy the folder again"
        ) from error
