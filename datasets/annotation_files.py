"""Where label files lie, and whether they are as they were."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


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


def marks_of(files: Iterable[LabelFile | None]) -> str:
    """One mark for many files: a hash of sizes and times."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        mark = "-" if file is None else f"{file.path} {file.size_bytes} {file.mtime_ns}"
        digest.update(mark.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()


def strays(missing: Sequence[str], keys: Sequence[str], where: str, what: str) -> None:
    """Refuse records that have no label file.

    Raises:
        ValueError: There are some.
    """
    if missing:
        raise ValueError(
            f"{where}: {len(missing):,} of {len(keys):,} images have no {what}, such as "
            f"{missing[0]!r}; add it, or say that they are empty: "
            f"dataset.annotations.missing=empty"
        )
