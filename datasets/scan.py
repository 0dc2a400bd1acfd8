"""Finding the files of a data set: one recursive pass, and a cheap look whether it still holds."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datasets.index import Index

log = logging.getLogger(__name__)

IMAGE_ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".tif", ".tiff",
                 ".pgm", ".ppm", ".pnm")  # fmt: skip

# Two changes of a folder within one tick of the kernel's clock leave the same time behind.
_CLOCK_TICK_S = 0.02
_SPOT_CHECKS = 64


@dataclass(frozen=True, slots=True)
class Scan:
    """What lies below a folder.

    Attributes:
        keys: Paths relative to the folder, with ``/``, as the bytes on disk, in byte order.
        size_bytes: int64 [n]; 0 for a link that leads nowhere.
        folders: Every folder scanned and its mtime in ns before it was read.
        others: A few names of files with other endings.
    """

    keys: list[bytes]
    size_bytes: NDArray[np.int64]
    folders: list[tuple[str, int]]
    others: list[bytes]


def scan_files(
    root: str, *, endings: Collection[str], follow_symlinks: bool = True, hidden: bool = False
) -> Scan:
    """Find all files below `root` that end in one of `endings`, upper or lower case.

    Args:
        root: The folder.
        endings: Such as ``.jpg``.
        follow_symlinks: Enter linked folders and take linked files. A link to a folder that it
            lies in itself is left out, with a warning.
        hidden: Take files and enter folders whose names begin with a dot.

    Raises:
        OSError: A folder cannot be read.
    """
    wanted = frozenset(ending.lower().lstrip(".").encode() for ending in endings)
    top = os.fsencode(root)
    keys: list[bytes] = []
    sizes: list[int] = []
    folders: list[tuple[str, int]] = []
    others: list[bytes] = []
    pending: list[tuple[bytes, tuple[tuple[int, int], ...]]] = [(b"", ())]
    while pending:
        prefix, above = pending.pop()
        status = os.stat(os.path.join(top, prefix))
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            log.warning("%s leads back to a folder above it: not entered", os.fsdecode(prefix))
            continue
        if 0 <= time.time() - status.st_mtime < _CLOCK_TICK_S:
            time.sleep(_CLOCK_TICK_S)
        folders.append((os.fsdecode(prefix), status.st_mtime_ns))
        with os.scandir(os.path.join(top, prefix)) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith(b".") and not hidden:
                    continue
                if entry.is_dir(follow_symlinks=follow_symlinks):
                    pending.append((prefix + name + b"/", (*above, identity)))
                elif not _ends_in(name, wanted):
                    if len(others) < 3:
                        others.append(prefix + name)
                elif _is_record(entry, follow_symlinks):
                    keys.append(prefix + name)
                    sizes.append(_size_bytes(entry))
    # One global order, whatever order the file system lists in and whatever it was copied from.
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
    return Scan(
        keys=[keys[i] for i in order.tolist()],
        size_bytes=np.array(sizes, np.int64)[order],
        folders=folders,
        others=sorted(others),
    )


def _ends_in(name: bytes, wanted: frozenset[bytes]) -> bool:
    stem, _, ending = name.rpartition(b".")
    return ending.lower() in wanted and bool(stem)


def _is_record(entry: os.DirEntry[bytes], follow_symlinks: bool) -> bool:
    """Whether an entry is a file; reading a pipe or a device would never end."""
    if entry.is_file(follow_symlinks=False):
        return True
    if not (follow_symlinks and entry.is_symlink()):
        return False
    # A link that leads nowhere stays a record: it becomes a bad sample and is not lost silently.
    return entry.is_file() or not os.path.exists(entry.path)


def _size_bytes(entry: os.DirEntry[bytes]) -> int:
    try:
        return entry.stat().st_size
    except OSError:
        return 0


def is_unchanged(root: str, folders: Sequence[tuple[str, int]], index: Index) -> bool:
    """Whether the scan that gave `index` would find the same again.

    Every folder's time is compared (files that came or went), and the sizes of a few files
    spread over the index (files written over).
    """
    try:
        for folder, mtime_ns in folders:
            if os.stat(os.path.join(root, folder)).st_mtime_ns != mtime_ns:
                return False
    except OSError:
        return False
    rows = np.unique(np.linspace(0, len(index) - 1, min(_SPOT_CHECKS, len(index))).astype(np.int64))
    sizes = index.values("size_bytes", rows).tolist()
    for key, size in zip(index.raw_keys(rows), sizes, strict=True):
        try:
            found = os.stat(os.path.join(os.fsencode(root), key)).st_size
        except OSError:
            found = 0
        if found != size:
            return False
    return True
