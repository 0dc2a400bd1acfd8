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
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_logger = logging.getLogger(__name__)

_KEEP_EPOCHS = 2
_KEEP_SAMPLERS = 32
_KEEP_DAYS = 14.0
_KEEP_EVERY_S = 60.0
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
    recent = _recent.get(signature, {}).get(epoch)
    if recent is not None:
        return recent

    def fill(array: NDArray[Any]) -> None:
        array[:] = compute()

    path, order = _stored(
        f"order-{signature}-{epoch}", np.int64, length, fill, what=f"order of epoch {epoch}"
    )
    _remove_past(path.parent, signature, epoch)
    _remember(signature, epoch, order)
    return order


_recent: dict[str, dict[int, NDArray[np.int64]]] = {}


def _remember(signature: str, epoch: int, order: NDArray[np.int64]) -> None:
    """Keep the newest orders of each of the samplers that were asked last."""
    # What other threads read is never changed but replaced, so that no lock is needed, which a
    # forked process could inherit held.
    global _recent
    others = {name: orders for name, orders in _recent.items() if name != signature}
    epochs = {**_recent.get(signature, {}), epoch: order}
    _recent = _newest({**others, signature: _newest(epochs, _KEEP_EPOCHS)}, _KEEP_SAMPLERS)


def _newest(kept: dict[Any, Any], count: int) -> dict[Any, Any]:
    return dict(list(kept.items())[-count:])


class StoredTable:
    """A table that all processes of the machine map from one file; it pickles as the file's path.

    Who has it open says now and then that the file is in use, and writes it anew if somebody has
    removed it.

    Args:
        name: Names the content, ``table-...``.
        dtype: Its dtype.
        length: Its length.
        fill: Writes it, if it is not there yet.
        what: What messages call it.
    """

    def __init__(
        self,
        name: str,
        dtype: type[np.generic],
        length: int,
        fill: Callable[[NDArray[Any]], None],
        *,
        what: str,
    ) -> None:
        self._what = what
        self._opened: NDArray[Any] | None
        self._path, self._opened = _stored(name, dtype, length, fill, what=what)
        self._kept_s = time.monotonic()

    @property
    def array(self) -> NDArray[Any]:
        """The table, memory-mapped, read-only."""
        if time.monotonic() - self._kept_s > _KEEP_EVERY_S:
            self._keep()
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        self._keep()
        return {**self.__dict__, "_opened": None}

    def _open(self) -> NDArray[Any]:
        try:
            return np.load(self._path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            raise ValueError(
                f"{self._what}: {self._path} was removed while it was in use; start the program "
                f"again, and go on with trainer.resume=auto"
            ) from None

    def _keep(self) -> None:
        self._kept_s = time.monotonic()
        try:
            os.utime(self._path)
        except FileNotFoundError:
            if (array := self._opened) is None:
                return
            with contextlib.suppress(OSError):  # without room for it, those who have it go on
                self._path.parent.mkdir(parents=True, exist_ok=True)
                _write(self._path, array.dtype, len(array), lambda anew: np.copyto(anew, array))
        except OSError:  # somebody else's
            pass


def _stored(
    name: str,
    dtype: type[np.generic],
    length: int,
    fill: Callable[[NDArray[Any]], None],
    *,
    what: str,
) -> tuple[Path, NDArray[Any]]:
    """A stored array [length], and its file; `fill` writes it if it is not there yet.

    It is open before others can see it, and so before anybody removes the file.
    """
    folder = _folder()
    path = folder / f"{name}.npy"
    array = _opened_whole(path, dtype, length)
    if array is not None:
        with contextlib.suppress(OSError):
            os.utime(path)  # still in use
        return path, array
    _remove_unused(folder)
    with _locked(folder, name):
        array = _opened_whole(path, dtype, length)
        if array is None:
            with _announced(f"{what}: {length:,} entries"):
                array = _write(path, dtype, length, fill)
    return path, array


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


def _opened_whole(path: Path, dtype: type[np.generic], length: int) -> NDArray[Any] | None:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        return None
    return array if array.shape == (length,) and array.dtype == np.dtype(dtype) else None


def _write(
    path: Path, dtype: DTypeLike, length: int, fill: Callable[[NDArray[Any]], None]
) -> NDArray[Any]:
    part = path.with_name(f"{path.stem}{_TEMPORARY}{os.getpid()}-{threading.get_ident()}")
    try:
        array = np.lib.format.open_memmap(part, mode="w+", dtype=dtype, shape=(length,))
        fill(array)
        array.flush()
        array.flags.writeable = False
        with contextlib.suppress(FileNotFoundError):  # cleared away; but we have it open
            os.replace(part, path)
        return array
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
