"""Find files and folders behind URLs by name or pattern, with each request sent once."""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from itertools import chain
from typing import Any, NamedTuple, ParamSpec, TypeVar

from penstock.datasets.files.access import MissingFile
from penstock.datasets.files.clients import UNFINISHED, Found, RemoteError, ask, side_by_side
from penstock.datasets.files.remote import split_url

_P = ParamSpec("_P")
_T = TypeVar("_T")
_MOST_FOLDERS = 10_000
"""Up to this many subfolders are listed in parallel."""
_kept: ContextVar[dict[Any, Any] | None] = ContextVar("_kept", default=None)


@contextmanager
def looking_once() -> Iterator[None]:
    """Cache listings and lookups of URLs within the block."""
    kept = _kept.get()
    token = _kept.set({} if kept is None else kept)
    try:
        yield
    finally:
        _kept.reset(token)


def _once(find: Callable[_P, _T]) -> Callable[_P, _T]:
    """Cache the results of a function inside `looking_once`."""

    @wraps(find)
    def found(*given: _P.args, **named: _P.kwargs) -> _T:
        if (kept := _kept.get()) is None:
            return find(*given, **named)
        key = (find.__name__, *given, *named.values())
        if key not in kept:
            kept[key] = find(*given, **named)
        return kept[key]

    return found


class NothingThere(ValueError):
    """A URL is neither a file nor a folder."""


class Look(NamedTuple):
    """The content of a URL: the file, or direct folders and files.

    `below` has the files at any depth, or None if they are too many for one response.
    """

    file: Found | None = None
    folders: Sequence[str] = ()
    files: Sequence[Found] = ()
    below: Sequence[Found] | None = None

    @classmethod
    def of(cls, below: Iterable[Found], file: Found | None = None) -> Look:
        """Build a `Look` from all files below a URL."""
        named = sorted(each for each in below if each.name)
        folders = {each.name.partition("/")[0] for each in named if "/" in each.name}
        files = [each for each in named if "/" not in each.name and each.name not in folders]
        return cls(file, sorted(folders), files, named)

    def at(self, name: str) -> Look | None:
        """Return the content of a name below, or None if unknown."""
        if self.below is None:
            return None
        file, start = next((each for each in self.below if each.name == name), None), f"{name}/"
        inside = (each for each in self.below if each.name.startswith(start))
        return Look.of((each._replace(name=each.name[len(start) :]) for each in inside), file)


@_once
def look_at(url: str) -> Look:
    """Find out whether a URL is a file or a folder, and list its content.

    This takes one round trip if the listing fits one response.
    """
    if url.startswith("http"):
        return Look(find_file(url))
    if (known := _known(url)) is not None:
        return known

    def tried(look: Callable[[str], Any]) -> Any:
        try:
            return look(url)
        except RemoteError as error:
            return error

    file, inside = side_by_side(tried, (find_file, _inside))
    if isinstance(inside, RemoteError):
        if not isinstance(file, Found):
            raise inside  # a HEAD response lacks a body, so this error says more
        return Look(file)
    if isinstance(file, RemoteError):
        if not inside.folders and not inside.files:
            raise file
        file = None
    _refuse_unfinished(url, inside.files)
    return inside._replace(file=file)


def _known(url: str) -> Look | None:
    """Return the content of a URL from a cached listing of a parent folder, or None."""
    kept, folder = _kept.get(), url
    while kept is not None and not (folder := folder.rpartition("/")[0]).endswith("/"):
        above: Look | None = kept.get((look_at.__name__, folder))
        if above is not None and (look := above.at(url[len(folder) + 1 :])) is not None:
            return look
    return None


def _inside(url: str) -> Look:
    try:
        folders, files = ask(url, lambda client: client.inside())
    except MissingFile:
        return Look()
    return Look.of(files) if folders is None else Look(None, folders, files)


@_once
def list_files(url: str) -> Sequence[Found]:
    """List all files below a URL, sorted by name; RemoteError for a folder of a web server."""
    if url.startswith("http"):
        raise RemoteError(
            f"{url}: no file is there, and a web server lists no folders; name its files, one or "
            f"several, as in https://host/part-{{000..099}}.tar, or images by "
            f"dataset.storage.pattern and count"
        )
    look = look_at(url)
    files = look.below
    if files is None:
        folders = look.folders if len(look.folders) <= _MOST_FOLDERS else [""]
        found = side_by_side(lambda f: ask(url, lambda client: list(client.files(f))), folders)
        files = sorted({*look.files, *chain.from_iterable(found)})
    _refuse_unfinished(url, files)
    return files


def _refuse_unfinished(url: str, files: Iterable[Found]) -> None:
    if any(each.name.rpartition("/")[2] == UNFINISHED for each in files):
        raise RemoteError(
            f"{url}: pack has not finished writing it ({UNFINISHED} is there); wait for it, or "
            f"type the same pack command again to resume"
        )


@_once
def find_file(url: str) -> Found | None:
    """Look up a file; return None if it is missing. Raises as `list_files`."""
    folder, name = split_url(url)
    if folder.endswith(":/"):  # a bucket
        return None
    if (known := _known(url)) is not None:
        return known.file
    try:
        return ask(folder, lambda client: client.head(name), name)
    except MissingFile:
        return None


@_once
def find_named(
    urls: Sequence[str], *, endings: Sequence[str], where: str
) -> tuple[str, dict[str, tuple[int, str]]]:
    """Find the files that URLs without braces name: files, folders, or patterns with ``*``.

    Return the common parent URL, and size and mark by relative name, sorted.
    """
    found: dict[str, tuple[int, str]] = {}
    # Several URLs are mostly files. For a single URL, list it as a folder in the same round trip.
    find = partial(_named, endings, find_file if len(urls) > 1 else lambda url: look_at(url).file)
    for url, files in zip(urls, side_by_side(find, urls), strict=True):
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
                f"{where}: {urls[0]} and {urls[-1]} are in different places; take each as a data "
                f"set of its own: dataset=mix"
            )
    return root, {file[len(root) + 1 :]: found[file] for file in sorted(found)}


def _named(
    endings: Sequence[str], find: Callable[[str], Found | None], url: str
) -> list[tuple[str, Found]]:
    """Find the files that a URL names, each with its URL; `find` looks up a single file."""
    if glob.has_magic(url):
        folder = url[: re.search(r"[*?[]", url).start()].rpartition("/")[0]  # type: ignore[union-attr]
        wanted = url[len(folder) + 1 :].split("/")
        there = [(each, each.name.split("/")) for each in list_files(folder)]
        return [
            (f"{folder}/{each.name}", each)
            for each, parts in there
            if len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))
        ]
    if (file := find(url)) is not None:
        return [(url, file)]
    ends = tuple(ending.lower() for ending in endings)
    inside = [each for each in list_files(url) if each.name.lower().endswith(ends)]
    return [(f"{url}/{each.name}", each) for each in inside if "/." not in f"/{each.name}"]
