"""Where label files lie, which records they speak of, and whether they are as they were."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from datasets.protocols import RecordsToLabel


@dataclass(frozen=True, slots=True)
class LabelFile:
    """A file that is there."""

    path: str
    size_bytes: int
    mtime_ns: int

    @classmethod
    def at(cls, path: str) -> LabelFile | None:
        """The file at `path`; None if there is none."""
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        return cls(path, status.st_size, status.st_mtime_ns)

    @classmethod
    def of(cls, key: str, folder: str, ending: str) -> LabelFile | None:
        """The label file of a key: in the same folders below `folder`, or without them."""
        stem = os.path.splitext(key)[0]
        for name in (stem, os.path.basename(stem)):
            if file := cls.at(os.path.join(folder, f"{name}{ending}")):
                return file
        return None


def find_labels(
    name: str, kind: Literal["file", "folder"], path: str, records: RecordsToLabel
) -> tuple[str, str]:
    """Where the labels of a storage lie, and what messages call that.

    Args:
        name: Of the component.
        kind: What is expected there.
        path: As configured, see `label_path`.
        records: What they are of.

    Returns:
        The absolute path; the storage and that path, for messages.

    Raises:
        ValueError: There is nothing of that kind.
    """
    found = label_path(path, root=records.root, part=records.part)
    where = f"{records.storage}, annotations {name} {found}"
    there = os.path.isdir(found) if kind == "folder" else LabelFile.at(found)
    if not there:
        raise ValueError(
            f"{where}: no such {kind}; set dataset.annotations.path, relative to the data's"
        )
    return found, where


def label_path(path: str, *, root: str, part: str) -> str:
    """A configured path: relative to the data's folder, with its ``{part}`` put in.

    What is not in that folder may also lie beside it.

    Args:
        path: As configured.
        root: The data's folder, or file, beside which relative paths begin.
        part: ``train`` or ``val`` where the data has parts, else an empty string.

    Raises:
        ValueError: The path has a ``{part}`` and the data has none.
    """
    if "{part}" in path and not part:
        raise ValueError(
            f"dataset.annotations.path: {path!r} names the part, but the data at {root} has no "
            f"folders train and val; name the file itself"
        )
    folder = root if os.path.isdir(root) else os.path.dirname(root)
    path = path.replace("{part}", part)
    inside, beside = (os.path.abspath(os.path.join(f, path)) for f in (folder, f"{folder}/.."))
    return beside if not os.path.exists(inside) and os.path.exists(beside) else inside


def stem_of(name: str) -> str:
    """The name of a file without its folders and its ending."""
    return os.path.splitext(os.path.basename(name.replace("\\", "/")))[0]


def entries_of(keys: Sequence[str], names: Sequence[str], *, where: str) -> list[str | None]:
    """The name under which one label file for all images speaks of each record.

    It is the key itself; else the same path but for the ending; else the same file name, or the
    same but for the ending, if no other name in the file is alike.

    Args:
        keys: Keys of the records.
        names: The names in the label file, each once.
        where: The storage and the label file, for messages.

    Returns:
        A name, or None where there is none, for each key.

    Raises:
        ValueError: A name fits two records equally well.
    """
    entries: list[str | None] = [None] * len(keys)
    taken: dict[str, str] = {}
    alike: tuple[Callable[[str], str], ...] = (str, _without_ending, _file_name, stem_of)
    for short in alike:
        by_short: dict[str, str | None] = {}
        for name in names:
            by_short[short(name)] = None if short(name) in by_short else name
        here: dict[str, str] = {}
        for row, key in enumerate(keys):
            name_or_none = by_short.get(short(key)) if entries[row] is None else None
            if name_or_none is None or name_or_none in taken:
                continue
            if (other := here.setdefault(name_or_none, key)) != key:
                raise ValueError(
                    f"{where}: {name_or_none!r} may be {other!r} or {key!r}; name the images "
                    f"there by their paths in the data"
                )
            entries[row] = name_or_none
        taken |= here
    return entries


def _without_ending(name: str) -> str:
    return os.path.splitext(name)[0]


def _file_name(name: str) -> str:
    return name.replace("\\", "/").rpartition("/")[2]


def marks_of(files: Iterable[LabelFile | None]) -> str:
    """One mark for many files: a hash of sizes and times."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        mark = "-" if file is None else f"{file.path} {file.size_bytes} {file.mtime_ns}"
        digest.update(mark.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()


def refuse_unlabelled(
    keys: Sequence[str], found: Sequence[object | None], where: str, what: str
) -> None:
    """Refuse records of which labels say nothing.

    Args:
        keys: Keys of the records, [n].
        found: What there is of each record, [n]; None: nothing.
        where: The storage and the labels, for messages.
        what: What a record lacks then.

    Raises:
        ValueError: There are some.
    """
    missing = [key for key, one in zip(keys, found, strict=True) if one is None]
    if missing:
        raise ValueError(
            f"{where}: {len(missing):,} of {len(keys):,} images have no {what}, such as "
            f"{missing[0]!r}; add it, or say that they are empty: "
            f"dataset.annotations.missing=empty"
        )
