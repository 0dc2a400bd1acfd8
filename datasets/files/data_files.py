"""Find the files of a data set below folders, by patterns, or by the paths in its records."""

from __future__ import annotations

import glob
import logging
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from penstock.datasets.files.access import RangeFile, expand_braces, is_url
from penstock.datasets.files.clients import Found
from penstock.datasets.files.listings import find_named

log = logging.getLogger(__name__)

IMAGE_ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".tif", ".tiff",
                 ".pgm", ".ppm", ".pnm", ".gif", ".avif", ".jp2", ".j2k", ".j2c", ".jpc", ".jpf",
                 ".jpx")  # fmt: skip
_AUDIO_ENDINGS = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".au", ".w64")
_IMAGE_MARKS = {b"\xff\xd8": ".jpg", b"\x89PNG": ".png", b"RIFF": ".webp", b"BM": ".bmp",
                b"II*\0": ".tif", b"MM\0*": ".tif", b"GIF8": ".gif",
                b"\0\0\0\x0cjP  ": ".jp2", b"\xff\x4f\xff\x51": ".j2k"}  # fmt: skip

# Two changes of a folder within one tick of the kernel's clock leave the same mtime.
_CLOCK_TICK_S = 0.02


def image_ending(content: bytes) -> str | None:
    """Return the usual extension of an image, such as ``.jpg``, from its first bytes, or None."""
    if content[4:8] == b"ftyp" and content[8:12] in (b"avif", b"avis"):
        return ".avif"
    return next((end for mark, end in _IMAGE_MARKS.items() if content.startswith(mark)), None)


@dataclass(frozen=True, slots=True)
class Scan:
    """Files below a folder.

    Attributes:
        keys: Paths relative to the folder, with ``/``, as the bytes on disk, in byte order.
        size_bytes: int64 [n]; 0 for a broken link.
        folders: Every scanned folder with its mtime in ns before the scan.
        others: Number of skipped files by extension; see `ending_of`.
    """

    keys: list[bytes]
    size_bytes: NDArray[np.int64]
    folders: list[tuple[str, int]]
    others: Counter[str]


def scan_files(
    root: str, *, endings: Collection[str], follow_symlinks: bool = True, hidden: bool = False
) -> Scan:
    """Find all files below `root` with one of `endings`, in any case.

    A link to a parent folder is skipped with a warning. Names that begin with a dot are `hidden`.
    """
    wanted = tuple(f".{ending.lower().lstrip('.')}".encode() for ending in endings)
    top = os.fsencode(root)
    found: list[tuple[bytes, int]] = []
    folders: list[tuple[str, int]] = []
    others: Counter[str] = Counter()
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
                    others[ending_of(name)] += 1
                elif _is_record(entry, follow_symlinks):
                    found.append((prefix + name, _size_bytes(entry)))
    # Sort, because the order of the file system depends on the disk and its history.
    found.sort()
    return Scan(
        keys=[key for key, _ in found],
        size_bytes=np.array([size for _, size in found], np.int64),
        folders=folders,
        others=others,
    )


def scan_listing(files: Iterable[Found], *, endings: Collection[str], hidden: bool = False) -> Scan:
    """Select files of a server's listing by the rules of `scan_files`."""
    wanted = tuple(f".{ending.lower().lstrip('.')}".encode() for ending in endings)
    seen = [(os.fsencode(file.name), file.size_bytes) for file in files]
    if not hidden:
        seen = [(key, size) for key, size in seen if b"/." not in b"/" + key]
    found = sorted((key, size) for key, size in seen if _ends_in(key, wanted))
    others = Counter(ending_of(key) for key, _ in seen if not _ends_in(key, wanted))
    sizes = np.array([size for _, size in found], np.int64)
    return Scan([key for key, _ in found], sizes, folders=[], others=others)


@cache
def field_of(endings: tuple[str, ...]) -> str:
    """Return the field name for the bytes of files with these extensions."""
    dotted = {f".{ending.lower().lstrip('.')}" for ending in endings}
    if not dotted.isdisjoint(IMAGE_ENDINGS):
        return "image"
    if not dotted.isdisjoint(_AUDIO_ENDINGS):
        return "audio"
    return next(iter(dotted)).rpartition(".")[2] if len(dotted) == 1 else "content"


def ending_of(name: bytes) -> str:
    """Return the extension of a file, such as ``.jpg``, in lower case; empty without one."""
    return os.path.splitext(name)[1].decode(errors="backslashreplace").lower()


def told_endings(counts: Counter[str]) -> str:
    """Describe the extensions of files, the most frequent first."""
    if not counts:
        return "no files at all"
    most = [f"{count:,} {ending or 'without an ending'}" for ending, count in counts.most_common(5)]
    return ", ".join(most) + (", ..." if len(counts) > 5 else "")


def no_images(counts: Counter[str], endings: Sequence[str], remedy: str) -> str:
    """Return the message for data without images."""
    common = next((ending[1:] for ending, _ in counts.most_common() if ending), None)
    ask = "" if common is None else (
        f"if those files are meant, type dataset.storage.endings=[{common}]; else "
    )  # fmt: skip
    return (
        f"no image found, among {told_endings(counts)}; expected names that end in "
        f"{', '.join(endings)}; {ask}{remedy}"
    )


def _ends_in(name: bytes, wanted: tuple[bytes, ...]) -> bool:
    return name.lower().endswith(wanted) and name.lower() not in wanted


def _is_record(entry: os.DirEntry[bytes], follow_symlinks: bool) -> bool:
    """Return whether an entry is a file; reading a pipe or device would block."""
    if entry.is_file(follow_symlinks=False):
        return True
    if not (follow_symlinks and entry.is_symlink()):
        return False
    # A broken link becomes a bad sample, so that it is not lost silently.
    return entry.is_file() or not os.path.exists(entry.path)


def _size_bytes(entry: os.DirEntry[bytes]) -> int:
    try:
        return entry.stat().st_size
    except OSError:
        return 0


@dataclass(frozen=True, slots=True)
class DataFiles:
    """Files sorted by name, with names relative to `root`.

    `marks` has size, and mtime in ns or etag, of each file, to detect changes.
    """

    root: str
    names: tuple[str, ...]
    marks: tuple[tuple[int, int | str], ...]

    def open(self, name: str) -> RangeFile:
        """Open a file; a remote file must be unchanged."""
        mark = self.marks[self.names.index(name)] if is_url(self.root) else None
        return RangeFile(os.path.join(self.root, name), root=self.root, mark=mark)

    @property
    def paths(self) -> list[str]:
        """Return the absolute paths."""
        return [os.path.join(self.root, name) for name in self.names]

    @property
    def recipe(self) -> list[list[str | int]]:
        """Return names and marks as JSON values."""
        return [[name, *mark] for name, mark in zip(self.names, self.marks, strict=True)]


def find_data_files(path: str | Sequence[str], *, endings: Sequence[str], where: str) -> DataFiles:
    """Find the files that `path` names.

    `path` is one or more of: a file with any name; a folder, searched recursively for `endings`
    without hidden files; a pattern with ``*``, ``?``, ``[]`` or ``**``; a pattern with
    ``{000..099}`` or ``{a,b}``, whose files must all exist.
    """
    patterns = [path] if isinstance(path, str) else path
    if any(map(is_url, patterns)):
        named = (url for pattern in patterns for url in expand_braces(pattern))
        root, files = find_named(tuple(named), endings=endings, where=where)
        return DataFiles(root, tuple(files), tuple(files.values()))
    found: dict[str, None] = {}
    roots = []
    for pattern in patterns:
        for name in _all_named(pattern, where):
            root, names = _files_at(name, endings, where)
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
    """Return a folder, and the relative names of the files that `path` (without braces) matches."""
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
    """Return the longest parent folder of a pattern without wildcards."""
    folder = os.path.dirname(pattern)
    while glob.has_magic(folder):
        folder = os.path.dirname(folder)
    return folder


def safe_path(
    root: str, name: str, *, follow_symlinks: bool, setting: str = "dataset.storage.root"
) -> str:
    """Return the path of the file `name` below `root`; data must not refer to files outside."""
    refuse_escape(name, root, setting=setting)
    path = os.path.join(root, os.path.normpath(name) if is_url(root) else name)
    if not follow_symlinks and not is_url(root):
        top = os.path.realpath(root)
        if os.path.commonpath((top, os.path.realpath(path))) != top:
            raise ValueError(f"{name!r:.100} leads out of its folder by a link")
    return path


def refuse_escape(name: str, root: str, *, setting: str = "dataset.storage.root") -> None:
    """Raise ValueError for a path outside the folder `root`; see `safe_path`."""
    if is_url(root):
        outside = is_url(name) or name.startswith("/") or ".." in name.split("/")
    else:
        path = os.path.normpath(os.path.join(root, name))
        outside = os.path.commonpath((root, path)) != root
    if outside or "\0" in name:
        how = f"type {setting}=/" if os.path.isabs(name) else f"set {setting}"
        raise ValueError(f"{name!r:.100} leads out of its folder {root}; if that is meant, {how}")
