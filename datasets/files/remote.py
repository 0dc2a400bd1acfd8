"""Find and read files behind URLs: whole, by place, or as a stream."""

from __future__ import annotations

import fnmatch
import glob
import io
import os
import re
from collections.abc import Sequence
from functools import partial
from multiprocessing.pool import AsyncResult
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import MAX_RECORD_BYTES, too_large
from penstock.datasets.files.access import MissingFile, SharedFile
from penstock.datasets.files.clients import (
    UNFINISHED,
    Found,
    RemoteError,
    ask,
    read_place,
    readers,
    side_by_side,
)
from penstock.datasets.files.reading_thread import still_wanted

_PIECE_BYTES = 8 << 20
_TICK_S = 0.2


class NothingThere(ValueError):
    """What is named is neither a file nor a folder behind a URL."""


def list_files(url: str) -> list[Found]:
    """List all files below a URL, by their names.

    Raises:
        RemoteError: It cannot be listed, as a web server's folders.
    """
    if url.startswith("http"):
        raise RemoteError(
            f"{url}: no file is there, and a web server lists no folders; name its files, one or "
            f"several, as in https://host/part-{{000..099}}.tar, or images by "
            f"dataset.storage.pattern and count"
        )
    files = sorted(ask(url, lambda client: list(client.files())))
    _refuse_unfinished(url, [each.name for each in files])
    return files


def list_folder(url: str) -> tuple[list[str], list[str]]:
    """List the names of the folders and of the files that lie in a URL; see `list_files`."""
    folders, files = ask(url, lambda client: client.folder())
    _refuse_unfinished(url, files)
    return folders, files


def _refuse_unfinished(url: str, names: Sequence[str]) -> None:
    if any(name.rpartition("/")[2] == UNFINISHED for name in names):
        raise RemoteError(
            f"{url}: pack has not finished writing it ({UNFINISHED} is there); wait for it, or "
            f"type the same pack command again, which goes on"
        )


def find_file(url: str) -> Found | None:
    """Look at one file; None: it is not there. Raises as `list_files` does."""
    folder, name = _split(url, None)
    if folder.endswith(":/"):  # a whole bucket
        return None
    try:
        return ask(folder, lambda client: client.head(name), name)
    except MissingFile:
        return None


def find_named(
    urls: Sequence[str], *, endings: Sequence[str], where: str
) -> tuple[str, dict[str, tuple[int, str]]]:
    """Find the files that URLs without braces name: files, folders, or patterns with ``*``.

    Args:
        urls: What is looked for.
        endings: Of the files that count in a folder.
        where: The storage, for messages.

    Returns:
        The URL above all of them, and size and mark by the name below it, sorted.

    Raises:
        ValueError: Something is not there (`NothingThere`), or is named twice.
        RemoteError: It cannot be looked for.
    """
    found: dict[str, tuple[int, str]] = {}
    for url, files in zip(urls, side_by_side(partial(_named, endings), urls), strict=True):
        if not files:
            kind = f"{' or '.join(endings)} files" if any(endings) else "files"
            raise NothingThere(
                f"{where}: nothing there: {url}; expected a file, a folder of {kind}, or a "
                f"pattern; set dataset.storage.path"
            )
        for file, each in files:
            if file in found:
                raise ValueError(f"{where}: {file} is named twice; name every file once")
            found[file] = each.size_bytes, each.mark
    root = next(iter(found)).rpartition("/")[0]
    while not all(file.startswith(f"{root}/") for file in found):
        root = root.rpartition("/")[0]
        if root.endswith(":/") or not root:
            raise ValueError(
                f"{where}: {urls[0]} and {urls[-1]} lie in different places; take each as a data "
                f"set of its own: dataset=mix"
            )
    return root, {file[len(root) + 1 :]: found[file] for file in sorted(found)}


def _named(endings: Sequence[str], url: str) -> list[tuple[str, Found]]:
    """Find the files that one URL names, each by its URL."""
    if glob.has_magic(url):
        folder = url[: re.search(r"[*?[]", url).start()].rpartition("/")[0]  # type: ignore[union-attr]
        wanted = url[len(folder) + 1 :].split("/")
        there = [(each, each.name.split("/")) for each in list_files(folder)]
        return [
            (f"{folder}/{each.name}", each)
            for each, parts in there
            if len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))
        ]
    if (file := find_file(url)) is not None:
        return [(url, file)]
    ends = tuple(ending.lower() for ending in endings)
    inside = [each for each in list_files(url) if each.name.lower().endswith(ends)]
    return [(f"{url}/{each.name}", each) for each in inside if "/." not in f"/{each.name}"]


def read_url(url: str, *, root: str | None = None, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """Read a whole file.

    Raises:
        MissingFile: It is not there, or is larger than `max_bytes`.
        RemoteError: The server has trouble, or does not let us.
    """
    folder, name = _split(url, root)
    content = read_place(folder, name, 0, max_bytes + 1)
    if len(content) > max_bytes:
        raise MissingFile(too_large(len(content), max_bytes))
    return content


class RemoteFile(SharedFile):
    """A file behind a URL, read by place: what `datasets.files.access.SharedFile` is for a disk.

    Args:
        path: Its URL.
        root: The URL of the data set, above it; None: its folder.
        mark: See `Found`; where it is given, other content is an error.
    """

    piece_bytes = _PIECE_BYTES

    def __init__(self, path: str, *, root: str | None = None, mark: str | None = None) -> None:
        super().__init__(path, root=root or path.rpartition("/")[0])
        self._mark = mark

    def view(self, offset: int, size_bytes: int) -> NDArray[np.uint8]:
        """As `read`, uint8 [size_bytes], read-only."""
        return np.frombuffer(self.read(offset, size_bytes), np.uint8)

    def read_upto(self, offset: int, size_bytes: int) -> bytes:
        """Read the bytes at a place, as many of them as there are.

        Raises:
            MissingFile: The file is gone.
            RemoteError: The server has trouble, does not let us, or has other content now.
        """
        folder, name = _split(self.path, self.root)
        pieces = [
            (start, min(start + _PIECE_BYTES, offset + size_bytes))
            for start in range(offset, offset + size_bytes, _PIECE_BYTES)
        ]

        def read(piece: tuple[int, int]) -> bytes:
            return read_place(folder, name, *piece, self._mark)

        return b"".join(side_by_side(read, pieces))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(RemoteFile, root=self.root, mark=self._mark), (self.path,)


class RemoteStream(io.RawIOBase):
    """A file behind a URL from its start to its end; the next piece comes while one is read.

    Args:
        url: Its URL.

    Raises:
        RemoteError: See `list_files`; so raise reads.
    """

    def __init__(self, url: str) -> None:
        found = find_file(url)
        if found is None:
            raise RemoteError(f"{url}: not there any more")
        self._file = RemoteFile(url, mark=found.mark)
        self._size_bytes = found.size_bytes
        self._asked = 0
        self._ahead = self._next_piece()
        self._piece = memoryview(b"")

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes; none at the end."""
        if not self._piece and self._ahead is not None:
            while not self._ahead.ready():
                self._ahead.wait(_TICK_S)
                still_wanted()
            piece, self._ahead = self._ahead.get(), self._next_piece()
            self._piece = memoryview(piece)
        taken = min(len(buffer), len(self._piece))
        buffer[:taken], self._piece = self._piece[:taken], self._piece[taken:]
        return taken

    def _next_piece(self) -> AsyncResult[bytes] | None:
        start, left = self._asked, self._size_bytes - self._asked
        if left <= 0:
            return None
        self._asked += min(left, _PIECE_BYTES)
        piece = start, min(left, _PIECE_BYTES)
        return readers(os.getpid()).apply_async(self._file.read, piece)


def _split(url: str, root: str | None) -> tuple[str, str]:
    """Split a file's URL into that of the data set, which has a client, and a name below it."""
    if root is not None and url.startswith(f"{root}/"):
        folder, name = root, url[len(root) + 1 :]
    else:
        folder, _, name = url.rpartition("/")
    return folder, unquote(name) if url.startswith("http") else name
