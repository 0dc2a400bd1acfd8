"""Arrays that must be computed whole: made once per machine, memory-mapped, shared.

Epoch orders (int64) and tables (float64) lie as ``.npy`` files in
``$XDG_CACHE_HOME/penstock/orders``. A file is there whole or not at all, and one process of
the machine computes it while the others wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_logger = logging.getLogger(__name__)

_KEEP_EPOCHS = 2
_KEEP_DAYS = 14.0
_SAY_AFTER_S = 1.0
_TEMPORARY = ".part-"


def signature_of(**parts: Any) -> str:
    """A short name for what decides an array's content; all parts must be JSON-able."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def digest_of(array: NDArray[Any]) -> str:
    """Hash of an array's content."""
    view = np.ascontiguousarray(array).view(np.uint8).data
    return hashlib.blake2b(view, digest_size=12).hexdigest()


def epoch_order(
    signature: str,
    epoch: int,
    length: int,
    compute: Callable[[], NDArray[np.int64]],
) -> NDArray[np.int64]:
    """The order of one epoch: record indices by position.

    Args:
        signature: What decides the orders apart from the epoch, see `signature_of`.
        epoch: The epoch.
        length: Number of positions.
        compute: Gives the order, int64 [length]; called by one process of the machine.

    Returns:
        int64 [length], memory-mapped, read-only.
    """
    recent = _recent.get((signature, epoch))
    if recent is not None:
        return recent

    def fill(array: NDArray[Any]) -> None:
        array[:] = compute()

    path = stored_array(
        f"order-{signature}-{epoch}", np.int64, length, fill, what=f"order of epoch {epoch}"
    )
    _remove_past(path.parent, signature, epoch)
    while len(_recent) >= _KEEP_EPOCHS:
        _recent.pop(next(iter(_recent)))
    order = _recent[signature, epoch] = open_array(path)
    return order


_recent: dict[tuple[str, int], NDArray[np.int64]] = {}


def stored_array(
    name: str,
    dtype: type[np.generic],
    length: int,
    fill: Callable[[NDArray[Any]], None],
    *,
    what: str,
) -> Path:
    """Path of a stored array [length]; `fill` writes it if it is not there yet."""
    folder = _folder()
    path = folder / f"{name}.npy"
    if _is_whole(path, dtype, length):
        with contextlib.suppress(OSError):
            os.utime(path)  # still in use
        return path
    _remove_unused(folder)
    with _locked(folder, name):
        if not _is_whole(path, dtype, length):
            with _announced(f"{what}: {length:,} entries"):
                _write(path, dtype, length, fill)
    return path


@lru_cache(maxsize=4)
def _open_mapped(path: str, inode: int) -> NDArray[Any]:
    return np.load(path, mmap_mode="r", allow_pickle=False)


def open_array(path: Path) -> NDArray[Any]:
    """The array at `path`, memory-mapped, read-only; opened once per process."""
    return _open_mapped(str(path), path.stat().st_ino)


def _folder() -> Path:
    """The cache folder; a private temporary one where the home cannot be written."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = root / "penstock" / "orders"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    folder = Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}" / "orders"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_uid != os.getuid():
        raise ValueError(f"orders: {folder} belongs to another user; set XDG_CACHE_HOME")
    return folder


def _is_whole(path: Path, dtype: type[np.generic], length: int) -> bool:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        return False
    return array.shape == (length,) and array.dtype == np.dtype(dtype)


def _write(
    path: Path, dtype: type[np.generic], length: int, fill: Callable[[NDArray[Any]], None]
) -> None:
    part = path.with_name(f"{path.stem}{_TEMPORARY}{os.getpid()}-{threading.get_ident()}")
    try:
        array = np.lib.format.open_memmap(part, mode="w+", dtype=dtype, shape=(length,))
        fill(array)
        array.flush()
        del array
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    """Hold the machine's lock for `name`; file systems without locks go without."""
    # A few shared lock files that are never removed: removing one that another process is
    # about to lock would let two of them in.
    slot = hashlib.blake2b(name.encode(), digest_size=1).hexdigest()
    with open(folder / f"lock-{slot}", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            _logger.debug("orders: %s cannot be locked; computing without", folder)
        yield


@contextlib.contextmanager
def _announced(what: str) -> Iterator[None]:
    """Say what is being computed if it takes longer than a second, and when it is done."""
    start = time.monotonic()
    timer = threading.Timer(_SAY_AFTER_S, _logger.info, ("computing the %s ...", what))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    duration_s = time.monotonic() - start
    if duration_s > _SAY_AFTER_S:
        _logger.info("computed the %s in %.1f s", what, duration_s)


def _remove_past(folder: Path, signature: str, epoch: int) -> None:
    """Remove the orders of epochs gone by.

    Whoever has a removed file mapped keeps it; whoever needs it again computes it again.
    """
    prefix = f"order-{signature}-"
    for file in folder.glob(f"{prefix}*.npy"):
        number = file.stem.removeprefix(prefix)
        if number.isdecimal() and int(number) <= epoch - _KEEP_EPOCHS:
            file.unlink(missing_ok=True)


def _remove_unused(folder: Path) -> None:
    """Remove what nobody has opened for a long time, half-written files among it."""
    stale_before = time.time() - _KEEP_DAYS * 86_400
    for file in folder.iterdir():
        with contextlib.suppress(OSError):
            is_ours = file.name.startswith(("order-", "table-"))
            if is_ours and file.stat().st_mtime < stale_before:
                file.unlink()
