"""Copy remote files to this machine, for formats that need local files."""

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
"""Copy several files up to this size in parallel, and larger files in parallel pieces."""

_urls: dict[str, str] = {}
"""URLs by the path of this process's copy."""


def local_copy(url: str, *, hidden: bool = False) -> str:
    """Copy a file, or all files below a URL or pattern, to this machine's cache; return the path.

    A changed file is copied again. A copy is removed after two weeks without use.
    """
    url = absolute_path(url)
    path = _copied(url, hidden)
    _urls[path] = url
    return path


def url_of_copy(path: str) -> str | None:
    """Return the URL that this process copied to a path, or None."""
    return _urls.get(path)


def copy_again(url: str, path: str) -> None:
    """Copy a URL to the path of another machine's copy; ValueError if the path would differ."""
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
    """Copy small files below a URL into a folder; skip missing and denied files."""

    def fetch(name: str) -> None:
        with contextlib.suppress(MissingFile, AccessDenied):
            content = read_url(f"{url}/{name}", root=url)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    side_by_side(fetch, list(names))


def copy_file(url: str, found: Found) -> Path:
    """Copy the file `found` to this machine's cache; see `local_copy`."""
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
