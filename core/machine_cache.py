"""Compute files once for all runs of this machine, named by what decides their content.

One process computes a file while the others wait, it is there whole or not at all, and a damaged
one is made anew. One that nobody has had open for two weeks is removed.

What maps such a file pickles as its path. On its way to another machine it says so by `sent`, and
asks `received` there where the file lies.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any, TypeVar

from penstock.core.files import is_at, locked, machine_folder, whole_file, writing
from penstock.core.locks import ThreadLock

_log = logging.getLogger(__name__)

T = TypeVar("T")
_KEEP_DAYS = 14.0
_MOST_HELD = 64
_SAY_AFTER_S = 1.0
_LOCK = ".lock"
_OURS = re.compile(r"\.?(copy|index|json|order|rows|table)-")

_in_use: dict[Path, IO[bytes]] = {}
"""Files that this process opened last, each with a lock that keeps others from removing it."""

_holding = ThreadLock()
"""Held while `_in_use` is changed."""

_sent: ContextVar[set[str] | None] = ContextVar("_sent", default=None)
_received: ContextVar[Mapping[str, str] | None] = ContextVar("_received", default=None)


def signature_of(**parts: Any) -> str:
    """A short name for what decides the content of a file.

    Args:
        parts: All of it, JSON-able.
    """
    text = json.dumps(parts, sort_keys=True, default=str)
    content = text.encode("utf-8", "surrogateescape")
    return hashlib.blake2b(content, digest_size=12).hexdigest()


def computed_once(
    name: str,
    ending: str,
    *,
    make: Callable[[Path], object],
    load: Callable[[Path], T | None],
    what: str,
) -> tuple[Path, T]:
    """Open the file of a name, made if it is not there, is damaged, or is no longer right.

    A file is never changed: where another is made, it is the next version, and runs go on with the
    one that they started with. What this process opened last is not removed as long as it lives.

    Args:
        name: What decides the content: ``copy-``, ``index-``, ``json-``, ``order-``, ``rows-`` or
            ``table-`` and a `signature_of`.
        ending: Of the file's name, such as ``.npy``.
        make: Writes the file that it is given.
        load: Opens it. None, or a ValueError that is logged: it is made anew.
        what: What messages call it.

    Raises:
        ValueError: The disk is full, or `make` says why it cannot be made.
    """
    folder = machine_folder("computed")
    remedy = "free some space, or set XDG_CACHE_HOME to a folder elsewhere"
    with writing(folder, remedy=remedy), locked(folder / f"{name}{_LOCK}"):
        newest = max((_version(path) for path in folder.glob(f"{name}-*{ending}")), default=0)
        path = folder / f"{name}-{newest}{ending}"
        if newest and (found := _opened(path, load)) is not None:
            return path, found
        _remove_unused(folder)
        path = folder / f"{name}-{newest + 1}{ending}"
        with _announced(what), whole_file(path) as temporary:
            make(temporary)
            _hold(path, temporary)  # before anybody sees it, and so before anybody removes it
        made = load(path)
        assert made is not None, f"{path} is not what it was just made as"
        return path, made


def files_of(name: str) -> list[Path]:
    """The files of a name, or of all that begin with it."""
    return list(machine_folder("computed").glob(f"{name}-*"))


def remove_if_unused(path: Path) -> None:
    """Remove a file, unless another process has it open."""
    with _holding:
        if (file := _in_use.pop(path, None)) is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)  # in processes that were forked from this one too
            file.close()
    with contextlib.suppress(OSError), open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()


@contextlib.contextmanager
def files_sent() -> Iterator[set[str]]:
    """While entered, collect the paths of the files that what is pickled maps."""
    paths: set[str] = set()
    token = _sent.set(paths)
    try:
        yield paths
    finally:
        _sent.reset(token)


@contextlib.contextmanager
def files_received(places: Mapping[str, str]) -> Iterator[None]:
    """While entered, let what is unpickled map files at other places, by their former paths."""
    token = _received.set(places)
    try:
        yield
    finally:
        _received.reset(token)


def sent(path: str) -> str:
    """Say while being pickled that this file is mapped; its path."""
    if (paths := _sent.get()) is not None:
        paths.add(path)
    return path


def received(path: str) -> str:
    """Tell while being unpickled where this file lies."""
    return (_received.get() or {}).get(path, path)


def is_received() -> bool:
    """Tell while being unpickled whether it was on its way to another machine, and may be there."""
    return _received.get() is not None


def _version(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def _opened(path: Path, load: Callable[[Path], T | None]) -> T | None:
    try:
        _hold(path, path)
        if (found := load(path)) is not None:
            with contextlib.suppress(OSError):  # in use; when it was made stays
                os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
            return found
    except FileNotFoundError:
        pass
    except (ValueError, EOFError) as error:
        _log.warning("%s: %s; it is made again", path.name, error)
    return None


def _hold(path: Path, at: Path) -> None:
    """Keep others from removing a file, which is at `at` for now."""
    with _holding:
        if path in _in_use:
            if is_at(at, _in_use[path].fileno()):
                return
            _in_use.pop(path).close()
        file = open(at, "rb")
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_SH)
        if not is_at(at, file.fileno()):
            file.close()
            raise FileNotFoundError(at)
        _in_use[path] = file
        while len(_in_use) > _MOST_HELD:
            if (oldest := _in_use.pop(list(_in_use)[0], None)) is not None:  # noqa: RUF015
                oldest.close()


def _remove_unused(folder: Path) -> None:
    stale_before = time.time() - _KEEP_DAYS * 86_400
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if _OURS.match(path.name) and path.stat().st_atime < stale_before:
                remove_if_unused(path)


@contextlib.contextmanager
def _announced(what: str) -> Iterator[None]:
    """Say what is being computed if it takes longer than a second, and when it is done."""
    start = time.monotonic()
    timer = threading.Timer(_SAY_AFTER_S, _log.info, ("computing the %s ...", what))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    duration_s = time.monotonic() - start
    if duration_s > _SAY_AFTER_S:
        _log.info("computed the %s in %.1f s", what, duration_s)
