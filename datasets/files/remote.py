"""List remote files, and read them as a whole or by range."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Sequence
from itertools import chain
from urllib.parse import unquote

from penstock.core.sample import MAX_RECORD_BYTES, too_large
from penstock.datasets.files.access import MissingFile
from penstock.datasets.files.clients import Found, RemoteError, ask, read_place, side_by_side

PIECE_BYTES = 8 << 20


class NothingThere(ValueError):
    """A URL is neither a file nor a folder."""


def look_at(url: str) -> tuple[list[str], list[str]]:
    """Return the names of the folders and files directly below a URL; none for a web server."""
    if url.startswith("http"):
        return [], []
    folders, files = _top(url)
    return folders, [each.name for each in files]


def _top(url: str) -> tuple[list[str], list[Found]]:
    """Return the names of the folders and the files directly below a URL."""
    try:
        folders, files = ask(url, lambda client: client.top())
    except MissingFile:
        return [], []
    # A store may have a file with the name of a folder, which cannot be copied to a disk.
    return sorted(folders), [each for each in files if each.name and each.name not in folders]


def list_files(url: str) -> Sequence[Found]:
    """List all files below a URL, sorted by name; RemoteError for a folder of a web server."""
    if url.startswith("http"):
        raise RemoteError(
            f"{url}: no file is there, and a web server lists no folders; name its files, such as "
            f"https://host/part-{{000..099}}.tar, or images in a table: dataset=csv"
        )
    folders, files = _top(url)
    found = side_by_side(lambda f: ask(url, lambda client: list(client.files(f))), folders)
    return sorted({*files, *chain.from_iterable(found)})


def find_file(url: str) -> Found | None:
    """Look up a file; return None if it is missing. Raises as `list_files`."""
    folder, name = split_url(url)
    if folder.endswith(":/"):  # a bucket
        return None
    try:
        return ask(folder, lambda client: client.head(name), name)
    except MissingFile:
        return None


def find_named(url: str, endings: Sequence[str]) -> tuple[str, Sequence[Found]]:
    """Find a file, or the files of a folder or pattern; return the folder and the files."""
    if glob.has_magic(url):
        folder = fixed_part(url)
        wanted = url[len(folder) + 1 :].split("/")
        there = [(each, each.name.split("/")) for each in list_files(folder)]
        return folder, [
            each
            for each, parts in there
            if len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))
        ]
    if (file := find_file(url)) is not None:
        folder, _, name = url.rpartition("/")
        return folder, [file._replace(name=name)]
    ends = tuple(ending.lower() for ending in endings)
    inside = [each for each in list_files(url) if each.name.lower().endswith(ends)]
    return url, [each for each in inside if "/." not in f"/{each.name}"]


def fixed_part(pattern: str) -> str:
    """Return the longest parent folder of a pattern without wildcards."""
    folder = os.path.dirname(pattern)
    while glob.has_magic(folder):
        folder = os.path.dirname(folder)
    return folder


def read_url(url: str, *, root: str | None = None, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """Read a whole file; MissingFile if it is missing or larger than `max_bytes`."""
    folder, name = split_url(url, root)
    content, _ = read_place(folder, name, 0, max_bytes + 1)
    if len(content) > max_bytes:
        raise MissingFile(too_large(len(content), max_bytes))
    return content


def read_range(url: str, root: str, offset: int, size_bytes: int, mark: str | None) -> bytes:
    """Read the bytes of a range, up to the end; see `read_place` for `mark` and errors."""
    folder, name = split_url(url, root)
    stop = offset + size_bytes
    starts = range(offset, stop, PIECE_BYTES)

    def read(start: int) -> bytes:
        return read_place(folder, name, start, min(start + PIECE_BYTES, stop), mark)[0]

    return b"".join(side_by_side(read, starts))


def split_url(url: str, root: str | None = None) -> tuple[str, str]:
    """Split a file's URL into the URL of the data set and a relative name."""
    if root is not None and url.startswith(f"{root}/"):
        folder, name = root, url[len(root) + 1 :]
    else:
        folder, _, name = url.rpartition("/")
    return folder, unquote(name) if url.startswith("http") else name
