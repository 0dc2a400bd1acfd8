"""Where indexes are kept between starts: the user's cache folder, never the data's own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.index import Index, write_whole
from pipeline.full_disk import writing

log = logging.getLogger(__name__)

_KEPT_VERSIONS = 4
_FORMAT = 1


def cache_folder() -> Path:
    """The folder of cached indexes, made if it is not there.

    ``$XDG_CACHE_HOME/penstock/index`` or ``~/.cache/penstock/index``; where that cannot be
    written (no home, a read-only one), a folder of this process in the temporary directory.
    """
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(root) / "penstock" / "index"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return _private_folder(str(folder))
    return folder if os.access(folder, os.W_OK | os.X_OK) else _private_folder(str(folder))


@cache
def _private_folder(wanted: str) -> Path:
    folder = tempfile.mkdtemp(prefix="penstock-index-")
    log.warning("%s cannot be written: indexes go to %s, for this run alone", wanted, folder)
    return Path(folder)


def cached_index(
    recipe: dict[str, Any],
    *,
    build: Callable[[Path], None],
    is_current: Callable[[Index], bool],
) -> Index:
    """The index that `recipe` names, from the cache if it still describes the data.

    A file is named by recipe and content, so a run goes on with the index it started with when
    another one writes a newer.

    Args:
        recipe: What the index is made from (kind, absolute path, arguments); JSON.
        build: Writes the index to the path it is given.
        is_current: Whether the data is still as the index says.
    """
    folder = cache_folder()
    name = hashlib.blake2b(
        json.dumps([_FORMAT, recipe], sort_keys=True).encode("utf-8", "surrogateescape"),
        digest_size=16,
    ).hexdigest()
    with _locked(folder / f"{name}.lock"):
        versions = sorted(folder.glob(f"{name}-*.arrow"), key=_written, reverse=True)
        for path in versions[:1]:
            try:
                index = Index.open(path, verify=True)
                if is_current(index):
                    return index
            except (FileNotFoundError, ValueError) as error:
                log.warning("%s; it is made again", error)
        for path in versions[_KEPT_VERSIONS - 1 :]:
            path.unlink(missing_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        os.close(descriptor)
        try:
            start = time.monotonic()
            build(Path(temporary))
            index = Index.open(temporary)
            path = folder / f"{name}-{index.fingerprint()[:16]}.arrow"
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
        if (seconds := time.monotonic() - start) > 1:
            log.info("indexed %s records in %.1f s: %s", f"{len(index):,}", seconds, path)
        return Index.open(path)


def cached_selection(name: str, compute: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """An array of rows that is computed once and mapped from the cache from then on.

    Args:
        name: Names everything the selection depends on.
        compute: Gives the rows, integer [n].
    """
    stem = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    path = cache_folder() / f"rows-{stem}.npy"
    with _locked(path.with_suffix(".lock")):
        with contextlib.suppress(OSError, ValueError, EOFError):
            return np.load(path, mmap_mode="r")
        rows = compute()
        write_whole(path, lambda file: np.save(file, rows))
    return np.load(path, mmap_mode="r")


def cached_json(name: str, compute: Callable[[], Any]) -> Any:
    """Plain values that are computed once and read from the cache from then on.

    Args:
        name: Names everything that they depend on.
        compute: Gives them.
    """
    stem = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    path = cache_folder() / f"json-{stem}.json"
    with _locked(path.with_suffix(".lock")):
        with contextlib.suppress(OSError, ValueError):
            return json.loads(path.read_bytes())
        values = compute()
        write_whole(path, lambda file: file.write(json.dumps(values).encode()))
    return values


def _written(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock, so that the ranks of a machine scan once."""
    import fcntl

    remedy = "free some space, or set XDG_CACHE_HOME to a folder elsewhere"
    with writing(path.parent, remedy=remedy), open(path, "wb") as file:
        # Some network file systems know no locks: then every process scans for itself.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
