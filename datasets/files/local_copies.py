"""Copy remote files to this machine, for forms that are read from a disk alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from penstock.core.files import locked, machine_folder
from penstock.core.machine_cache import computed_once, signature_of
from penstock.datasets.files.access import (
    MissingFile,
    RangeFile,
    absolute_path,
    expand_braces,
    is_pattern,
)
from penstock.datasets.files.clients import AccessDenied, Found, side_by_side
from penstock.datasets.files.listings import find_file, find_named, list_files
from penstock.datasets.files.remote import read_url

_AT_ONCE_BYTES = 64 << 20
_SMALL_BYTES = 4 << 20
"""Files up to this are copied several at a time, larger ones several pieces at a time."""

_urls: dict[str, str] = {}
"""URLs by the path of this process's copy."""


def local_copy(url: str, *, hidden: bool = False) -> str:
    """Copy a file, or all files below a URL, to this machine's cache; once for all its runs.

    A copy is of the content that is there now: it is made again when that has changed, and is
    removed after two weeks without use.

    Args:
        url: A file, a folder, or a pattern with ``*`` or braces.
        hidden: It is a folder, of which what begins with a dot is copied too.

    Returns:
        The path of the copy, or of a folder with the files.

    Raises:
        ValueError: Nothing is there, or the URL carries a password.
        RemoteError: It cannot be read.
    """
    url = absolute_path(url)
    path = _copied(url, hidden)
    _urls[path] = url
    return path


def url_of_copy(path: str) -> str | None:
    """Return the URL that this process has copied to a path, or None."""
    return _urls.get(path)


def copy_again(url: str, path: str) -> None:
    """Copy a URL to this machine, to the path of another machine's copy.

    Raises:
        ValueError: Its cache lies elsewhere, or the content is another one by now.
        RemoteError: It cannot be read.
    """
    cache = machine_folder("remote").parent
    if not Path(path).is_relative_to(cache):
        raise ValueError(
            f"{url} is read from a copy at {path}, and the cache is {cache} here: start Ray with "
            f"the same XDG_CACHE_HOME on every machine, a folder that each of them can write"
        )
    if local_copy(url) != path:
        raise ValueError(f"{url} was changed since it was copied to {path}: start again")


def _copied(url: str, hidden: bool) -> str:
    if not is_pattern(url) and (found := find_file(url)) is not None:
        return str(copy_file(url, found))
    root, files = find_named(tuple(expand_braces(url)), endings=("",), where="copy")
    if hidden:
        root, files = url, {name: (size, mark) for name, size, mark in list_files(url)}
    folders = {str(folder) for name in files for folder in PurePosixPath(name).parents}
    wanted = [Found(n, *mark) for n, mark in files.items() if n and n not in folders]

    def copy(found: Found) -> tuple[str, Path]:
        return found.name, copy_file(f"{root}/{found.name}", found)

    small = [found for found in wanted if found.size_bytes <= _SMALL_BYTES]
    copies = dict(side_by_side(copy, small))
    copies |= dict(copy(found) for found in wanted if found.size_bytes > _SMALL_BYTES)
    sign = signature_of(url=url, files={name: str(path) for name, path in copies.items()})
    folder = machine_folder("remote") / sign / os.path.basename(root)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent / ".lock"):
        for name, path in copies.items():
            link = folder / name
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                link.unlink(missing_ok=True)
                link.symlink_to(path)
    return str(folder)


def fetch_files(url: str, names: Iterable[str], folder: Path) -> None:
    """Copy small files below a URL into a folder, those of them that are there.

    Raises:
        RemoteError: They cannot be read. A denied file counts as missing.
    """

    def fetch(name: str) -> None:
        with contextlib.suppress(MissingFile, AccessDenied):
            content = read_url(f"{url}/{name}", root=url)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    side_by_side(fetch, list(names))


def copy_file(url: str, found: Found) -> Path:
    """Copy a file, as it was found, to this machine's cache; see `local_copy`."""
    file = RangeFile(url, mark=(found.size_bytes, found.mark))

    def download(path: Path) -> None:
        with open(path, "wb") as copy:
            for start in range(0, found.size_bytes, _AT_ONCE_BYTES):
                size = min(_AT_ONCE_BYTES, found.size_bytes - start)
                copy.write(file.read(start, size))

    sign = signature_of(url=url, mark=found.mark, size=found.size_bytes)
    ending = Path(url).suffix
    path, _ = computed_once(
        f"copy-{sign}", ending, make=download, load=lambda path: path, what=f"copy of {url}"
    )
    return path
