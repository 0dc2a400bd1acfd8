"""Find the files of a data set below folders, by patterns, or by the paths in its records."""

from __future__ import annotations

import glob
import logging
import os
import socket
import stat
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.core.machine_cache import computed_once, signature_of
from penstock.core.sample import RecordError
from penstock.datasets.files.access import RangeFile, expand_braces, is_url, read_each
from penstock.datasets.files.byte_streams import ByteStream
from penstock.datasets.files.clients import Found
from penstock.datasets.files.remote import NothingThere, find_named, fixed_part

log = logging.getLogger(__name__)

IMAGE_ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".tif", ".tiff",
                 ".pgm", ".ppm", ".pnm", ".gif", ".avif", ".jp2", ".j2k", ".j2c", ".jpc", ".jpf",
                 ".jpx")  # fmt: skip
_AUDIO_ENDINGS = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".au", ".w64")
_IMAGE_MARKS = {b"\xff\xd8": ".jpg", b"\x89PNG": ".png", b"RIFF": ".webp", b"BM": ".bmp",
                b"II*\0": ".tif", b"MM\0*": ".tif", b"GIF8": ".gif"}  # fmt: skip

# Two changes of a folder within one tick of the kernel's clock leave the same mtime.
_CLOCK_TICK_S = 0.02
_PIECE_BYTES = 8 << 20
_TIMEOUT_S = 120.0  # for streams, which may stall


def image_ending(content: bytes) -> str | None:
    """Return the usual extension of an image, such as ``.jpg``, from its first bytes, or None."""
    return next((end for mark, end in _IMAGE_MARKS.items() if content.startswith(mark)), None)


@dataclass(frozen=True, slots=True)
class Scan:
    """Files below a folder: `keys` are paths relative to it, as the bytes on disk, in byte order.

    `size_bytes`, int64 [n], is 0 for a broken link. `folders` has every scanned folder with its
    mtime in ns before the scan, and `others` the number of skipped files by extension.
    """

    keys: list[bytes]
    size_bytes: NDArray[np.int64]
    folders: list[tuple[str, int]]
    others: Counter[str]


def scan_files(root: str, *, endings: Collection[str]) -> Scan:
    """Find all files below `root` with one of `endings`, in any case.

    Links are followed, except to a parent folder. Names that begin with a dot are left out.
    """
    folders: list[tuple[str, int]] = []
    return _select(_walk(os.fsencode(root), folders), folders, endings)


def scan_listing(files: Iterable[Found], *, endings: Collection[str]) -> Scan:
    """Select files of a server's listing by the rules of `scan_files`."""
    return _select(((os.fsencode(f.name), f.size_bytes) for f in files), [], endings)


def _walk(top: bytes, folders: list[tuple[str, int]]) -> Iterator[tuple[bytes, int]]:
    """Yield key and size of all files, and append each entered folder to `folders`."""
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
                if entry.name.startswith(b"."):
                    continue
                if entry.is_dir():
                    pending.append((prefix + entry.name + b"/", (*above, identity)))
                elif (size_bytes := _size_bytes(entry)) is not None:
                    yield prefix + entry.name, size_bytes


def _size_bytes(entry: os.DirEntry[bytes]) -> int | None:
    """Return the size of a file, 0 for a broken link, and None for pipes and devices."""
    try:
        status = entry.stat()
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _select(
    files: Iterable[tuple[bytes, int]], folders: list[tuple[str, int]], endings: Collection[str]
) -> Scan:
    wanted = tuple(f".{ending.lower().lstrip('.')}".encode() for ending in endings)
    found, others = [], Counter[str]()
    for key, size_bytes in files:
        name = key.lower().rpartition(b"/")[2]
        if b"/." in b"/" + key:
            continue
        if name.endswith(wanted) and name not in wanted:
            found.append((key, size_bytes))
        else:
            others[ending_of(name)] += 1
    # Sort, because the order of the file system depends on the disk and its history.
    found.sort()
    sizes = np.array([size for _, size in found], np.int64)
    return Scan([key for key, _ in found], sizes, folders, others)


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


def no_images(counts: Counter[str], endings: Sequence[str], remedy: str) -> str:
    """Return the message for data without images; `counts` are the other files by extension."""
    most = [f"{count:,} {ending or 'without an ending'}" for ending, count in counts.most_common(5)]
    return (
        f"no image found, among {', '.join(most) or 'no files at all'}; expected names that end in "
        f"{', '.join(endings)}; {remedy}, or name other endings: dataset.storage.endings=[...]"
    )


@dataclass(frozen=True, slots=True)
class DataFiles:
    """Files sorted by name, relative to `root`; `compressed` ones are read from unpacked copies.

    `marks` has size, and mtime in ns or etag, of each file, to detect changes.
    """

    root: str
    names: tuple[str, ...]
    marks: tuple[tuple[int, int | str], ...]
    compressed: frozenset[str] = frozenset()
    host: str = field(default_factory=socket.gethostname)

    def unpacking(self, names: Iterable[str]) -> DataFiles:
        """Return these files, of which `names` are compressed."""
        return replace(self, compressed=frozenset(names))

    def open(self, name: str) -> RangeFile:
        """Open a file; a remote file must be unchanged."""
        path, mark = os.path.join(self.root, name), self.marks[self.names.index(name)]
        if name in self.compressed:
            return RangeFile(str(_unpacked(path, mark)))
        return RangeFile(path, root=self.root, mark=mark if is_url(path) else None)

    def refuse_changed(self, number: int) -> None:
        """Raise RecordError if a local file was replaced; for formats without checksums.

        Reading a mapped file that was cut would end the process.
        """
        size_bytes, time = self.marks[number]
        try:
            found = os.stat(f"{self.root}/{self.names[number]}")
        except OSError:  # a missing file, and a URL
            return
        is_old = found.st_mtime_ns == time or self.host != socket.gethostname()  # of a copy
        if not is_old or found.st_size != size_bytes:
            raise RecordError("it was written anew while it was in use")

    @property
    def paths(self) -> list[str]:
        """Return the absolute paths."""
        return [os.path.join(self.root, name) for name in self.names]

    @property
    def recipe(self) -> list[list[str | int]]:
        """Return names and marks as JSON values."""
        return [[name, *mark] for name, mark in zip(self.names, self.marks, strict=True)]


def _unpacked(path: str, mark: tuple[int, int | str]) -> Path:
    """Decompress a file, once for all runs of this machine until it changes."""

    def make(copy: Path) -> None:
        stream = ByteStream(path, timeout_s=_TIMEOUT_S, mark=mark)
        with closing(stream), open(copy, "wb") as file:
            try:
                while piece := stream.read(_PIECE_BYTES):
                    file.write(piece)
            except RecordError as error:
                raise ValueError(f"{path}: {error}; copy it again") from error

    sign, what = signature_of(unpacked=path, mark=mark), f"unpacked copy of {path}"
    return computed_once(f"copy-{sign}", ".tar", make=make, load=lambda copy: copy, what=what)[0]


def find_data_files(path: str | Sequence[str], *, endings: Sequence[str], where: str) -> DataFiles:
    """Find the files that `path` names, which may be URLs; NothingThere without any.

    `path` is one or more of: a file with any name; a folder, searched recursively for `endings`
    without hidden files; a pattern with ``*``, ``?``, ``[]`` or, on a disk, ``**``; a pattern with
    ``{000..099}`` or ``{a,b}``, whose files must all exist.
    """
    patterns = [path] if isinstance(path, str) else path
    names = [n for p in patterns for n in ([p] if os.path.lexists(p) else expand_braces(p))]
    found: dict[str, tuple[int, int | str]] = {}
    try:
        there = list(read_each(partial(_files_at, endings=endings), names, place=names[0]))
    except OSError as error:
        raise ValueError(f"{where}: {error.filename}: {error.strerror}") from error
    for name, (_, files) in zip(names, there, strict=True):
        for file, size_bytes, mark in files:
            found[file] = size_bytes, mark
        if not files:
            raise NothingThere(
                f"{where}: nothing there: {name}; expected a file, a folder of "
                f"{' or '.join(endings)} files, or a pattern; set dataset.storage.path"
            )
    # The path functions would join the slashes of URLs.
    prefix = os.path.commonprefix([f"{root}/" for root, _ in there])  # noqa: RUF071
    root = prefix.rpartition("/")[0]
    if any(map(is_url, names)) and not is_url(root):
        raise ValueError(
            f"{where}: {names[0]} and {names[-1]} are in different places; take each as a data "
            f"set of its own: dataset=mix"
        )
    inside = {file[len(root) :].lstrip("/"): found[file] for file in sorted(found)}
    return DataFiles(root or "/", tuple(inside), tuple(inside.values()))


def _files_at(name: str, endings: Sequence[str]) -> tuple[str, list[tuple[str, int, int | str]]]:
    """Return a folder, and the files that a path or URL without braces names, with their marks."""
    if is_url(name):
        folder, files = find_named(name, endings)
        return folder, [(f"{folder}/{each.name}", each.size_bytes, each.mark) for each in files]
    if os.path.isdir(name):
        folder, keys = name, scan_files(name, endings=endings).keys
        paths = [os.path.join(folder, os.fsdecode(key)) for key in keys]
    elif os.path.exists(name):
        folder, paths = os.path.dirname(name), [name]
    else:
        folder = fixed_part(name)
        paths = [path for path in glob.glob(name, recursive=True) if os.path.isfile(path)]
    marks = map(os.stat, paths)
    return folder, [(p, s.st_size, s.st_mtime_ns) for p, s in zip(paths, marks, strict=True)]


def safe_path(root: str, name: str, *, setting: str = "dataset.storage.root") -> str:
    """Return the path of the file `name` below `root`; data must not refer to files outside."""
    refuse_escape(name, root, setting=setting)
    if is_url(root):
        return os.path.join(root, os.path.normpath(name))
    path, top = os.path.join(root, name), os.path.realpath(root)
    if os.path.commonpath((top, os.path.realpath(path))) != top:
        raise ValueError(f"{name!r:.100} leads out of its folder by a link; set {setting} above it")
    return path


def refuse_escape(name: str, root: str, *, setting: str = "dataset.storage.root") -> None:
    """Raise ValueError for a path outside the folder `root`; see `safe_path`."""
    path, top = os.path.normpath(os.path.join(root, name)), os.path.normpath(root).rstrip("/")
    if is_url(name) or "\0" in name or not f"{path}/".startswith(f"{top}/"):
        how = f"type {setting}=/" if os.path.isabs(name) else f"set {setting}"
        raise ValueError(f"{name!r:.100} leads out of its folder {root}; if that is meant, {how}")
