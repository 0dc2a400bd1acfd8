"""Files computed once for all runs on this machine, named by a hash of their inputs.

One process computes a file while others wait. A damaged file is recomputed, and a file that no
process opened for a month is removed. Objects that map such a file pickle its path, as `sent`
returns it; within `files_sent` also the content, for machines that lack the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from penstock.core.files import locked, machine_folder, whole_file, writing

_log = logging.getLogger(__name__)

T = TypeVar("T")
_KEEP_S = 30 * 86_400
_SAY_AFTER_S = 1.0
_OURS = re.compile(r"\.?(copy|index|json|order|rows|table)-")

_sends_content: ContextVar[bool] = ContextVar("_sends_content", default=False)


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
    """Open a file, or compute it if it is missing, damaged or refused by `load`.

    Args:
        name: A kind and a `signature_of` the inputs.
        ending: Suffix of the file, such as ``.npy``.
        make: Writes the file at the given path.
        load: Opens the file. On None or a ValueError the file is recomputed.
        what: Name of the file in messages.
    """
    folder = machine_folder("computed")
    path = folder / f"{name}{ending}"
    remedy = "free some space, or set XDG_CACHE_HOME to a folder elsewhere"
    with writing(folder, remedy=remedy), locked(folder / f"{name}.lock"):
        found = _opened(path, load)
        if found is None:
            _remove_unused(folder)
            timer = threading.Timer(_SAY_AFTER_S, _log.info, ("computing the %s ...", what))
            timer.daemon = True
            timer.start()
            try:
                with whole_file(path) as temporary:
                    make(temporary)
            finally:
                timer.cancel()
            found = load(path)
            assert found is not None, f"{path} cannot be loaded, although it was just computed"
        return path, found


@contextlib.contextmanager
def files_sent() -> Iterator[None]:
    """Let objects pickled in the block open their cache files on every machine."""
    token = _sends_content.set(True)
    try:
        yield
    finally:
        _sends_content.reset(token)


def sent(path: str) -> Any:
    """Return what an object that maps the file pickles; it unpickles as the file's local path."""
    return _SentFile(path) if _sends_content.get() else path


@dataclass(frozen=True, slots=True)
class _SentFile:
    path: str

    def __reduce__(self) -> tuple[Any, ...]:
        return _placed, (self.path, _mark(self.path), Path(self.path).read_bytes())


def _placed(path: str, mark: tuple[int, int], content: bytes) -> str:
    with contextlib.suppress(OSError):
        if _mark(path) == mark:
            return path
    name, what = f"copy-{signature_of(path=path, mark=mark)}", f"copy of {path}"
    copy, _ = computed_once(
        name, Path(path).suffix, make=lambda p: p.write_bytes(content), load=lambda p: p, what=what
    )
    return str(copy)


def _mark(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def _opened(path: Path, load: Callable[[Path], T | None]) -> T | None:
    if not path.exists():
        return None
    try:
        found = load(path)
    except (ValueError, EOFError) as error:
        _log.warning("%s: %s; it is computed again", path.name, error)
        return None
    with contextlib.suppress(OSError):  # update the access time only
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
    return found


def _remove_unused(folder: Path) -> None:
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if _OURS.match(path.name) and path.stat().st_atime < time.time() - _KEEP_S:
                path.unlink()
