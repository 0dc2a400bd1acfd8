"""Files computed once for all runs on this machine, named by a hash of their inputs.

One process computes a file, atomically, while others wait. A damaged file is recomputed, and a file
that no process opened for two weeks is removed.

Objects that map such a file pickle its path. To move to another machine, they register the file by
`sent`, and `received` maps the path to the copy there.
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
"""The files that this process opened last, each with a lock that prevents removal."""

_holding = ThreadLock()
"""Guards `_in_use`."""

_sent: ContextVar[set[str] | None] = ContextVar("_sent", default=None)
_received: ContextVar[Mapping[str, str] | None] = ContextVar("_received", default=None)


def signature_of(**parts: Any) -> str:
    """Return a short hash of the JSON-able inputs that determine a file."""
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
    """Open the newest valid version of a file, or compute the next version.

    Files never change: a running process keeps its version. The last files that this process
    opened are safe from removal while it lives.

    Args:
        name: ``copy-``, ``index-``, ``json-``, ``order-``, ``rows-`` or ``table-``, and a
            `signature_of` the inputs.
        ending: Suffix of the file, such as ``.npy``.
        make: Writes the file at the given path.
        load: Opens the file. On None or a logged ValueError the file is recomputed.
        what: Name of the file in messages.

    Raises:
        ValueError: The disk is full, or `make` failed.
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
            _hold(path, temporary)  # before the rename, after which others may remove it
        made = load(path)
        assert made is not None, f"{path} is not what it was just made as"
        return path, made


def files_of(name: str) -> list[Path]:
    """Return the files with a name, or a prefix of the name."""
    return list(machine_folder("computed").glob(f"{name}-*"))


def remove_if_unused(path: Path) -> None:
    """Remove a file, unless another process has it open."""
    with _holding:
        if (file := _in_use.pop(path, None)) is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)  # also for forks of this process
            file.close()
    with contextlib.suppress(OSError), open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()


@contextlib.contextmanager
def files_sent() -> Iterator[set[str]]:
    """Yield a set that collects the paths of cache files of objects pickled in the block."""
    paths: set[str] = set()
    token = _sent.set(paths)
    try:
        yield paths
    finally:
        _sent.reset(token)


@contextlib.contextmanager
def files_received(places: Mapping[str, str]) -> Iterator[None]:
    """Map former paths of cache files to `places` while objects are unpickled in the block."""
    token = _received.set(places)
    try:
        yield
    finally:
        _received.reset(token)


def sent(path: str) -> str:
    """Register a mapped file while its object is pickled; return the path."""
    if (paths := _sent.get()) is not None:
        paths.add(path)
    return path


def received(path: str) -> str:
    """Return the local path of a file while its object is unpickled."""
    return (_received.get() or {}).get(path, path)


def is_received() -> bool:
    """Whether the object being unpickled was sent by another machine."""
    return _received.get() is not None


def _version(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def _opened(path: Path, load: Callable[[Path], T | None]) -> T | None:
    try:
        _hold(path, path)
        if (found := load(path)) is not None:
            with contextlib.suppress(OSError):  # update the access time only
                os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
            return found
    except FileNotFoundError:
        pass
    except (ValueError, EOFError) as error:
        _log.warning("%s: %s; it is made again", path.name, error)
    return None


def _hold(path: Path, at: Path) -> None:
    """Lock a file, currently at `at`, against removal by other processes."""
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
    """Log the computation at its start and end if it takes longer than a second."""
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
