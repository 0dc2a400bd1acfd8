"""Texts in HDF5 files that say what records are called: keys, and the names of classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from datasets.formats.hdf5_arrays import DAMAGE, Array, OpenedFile
from datasets.formats.hdf5_filters import DamagedChunk
from datasets.formats.hdf5_found import FoundFile
from datasets.formats.hdf5_objects import CLASS_NAMES
from datasets.formats.hdf5_reader import ArrayReader

Opened = Callable[[int], OpenedFile]
"""Gives a file by number."""


def named_classes(
    files: Sequence[FoundFile], reader: ArrayReader, opened: Opened, *, where: str
) -> tuple[str, ...] | None:
    """The names of the classes, in attributes or in a dataset of the files."""
    for number, file in enumerate(files):
        for found in file.arrays:
            if found.name in CLASS_NAMES and found.sample is None:
                texts = texts_of(
                    reader, opened(number), found.array, where=f"{where}: {found.name}"
                )
                return tuple(texts)
        names = next((f.class_names for f in file.arrays if f.class_names), file.class_names)
        if names:
            return tuple(names)
    return None


def texts_of(
    reader: ArrayReader, file: OpenedFile, array: Array, *, where: str, raw: bool = False
) -> list[Any]:
    """An array of texts or numbers as texts, or as their bytes."""
    try:
        whole = reader.whole(file, array).reshape(-1)
    except DAMAGE as error:
        raise ValueError(f"{where}: {error}; copy the file again") from None
    if array.type.kind == "number":
        return list(map(str, whole.tolist()))
    texts = reader.values(file, array, whole, raw=raw)
    for row, text in enumerate(texts):
        if isinstance(text, DamagedChunk):
            raise ValueError(f"{where}: row {row}: {text}, expected text")
    return texts


def refuse_twice(keys: Sequence[str | bytes], *, where: str) -> None:
    """Raise ValueError for a key that stands twice."""
    if len(set(keys)) == len(keys):
        return
    seen: dict[str | bytes, int] = {}
    for row, key in enumerate(keys):
        if seen.setdefault(key, row) != row:
            raise ValueError(
                f"{where}: key {_shown(key)!r} stands twice, in records {seen[key]} and {row}; "
                f"write them anew, each with a key of its own"
            )


def _shown(key: str | bytes) -> str:
    return key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")
