"""Store epoch orders and tables that must be computed whole: once per machine, memory-mapped."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.arrays import map_npy
from penstock.core.files import whole_file
from penstock.core.machine_cache import computed_once, files_of, received, remove_if_unused, sent

_KEEP_EPOCHS = 2
_KEEP_SAMPLERS = 32


def digest_of(array: NDArray[Any]) -> str:
    """Hash the content of an array."""
    view = np.ascontiguousarray(array).view(np.uint8).data
    return hashlib.blake2b(view, digest_size=12).hexdigest()


def epoch_order(
    signature: str,
    epoch: int,
    length: int,
    compute: Callable[[], NDArray[np.int64]],
) -> NDArray[np.int64]:
    """Return the order of one epoch: record indices by position, int64 [length], memory-mapped.

    Args:
        signature: Hash of all inputs except the epoch (`core.machine_cache.signature_of`).
        epoch: The epoch.
        length: Number of positions.
        compute: Returns the order, int64 [length]; one process of the machine calls it.
    """
    recent = _recent.get(signature, {}).get(epoch)
    if recent is not None:
        return recent

    def fill(array: NDArray[Any]) -> None:
        array[:] = compute()

    name = f"order-{signature}-{epoch}"
    _, order = _stored(name, np.int64, length, fill, what=f"order of epoch {epoch}")
    _remember(signature, epoch, order)
    for path in files_of(f"order-{signature}"):
        past = path.name.removeprefix(f"order-{signature}-").partition("-")[0].partition(".")[0]
        # A process that needs a removed order computes it again.
        if int(past) <= epoch - _KEEP_EPOCHS:
            remove_if_unused(path)
    return order


class StoredOrderSampler:
    """Base of samplers that compute an epoch as a whole, once per machine.

    Args:
        signature: Hash of all inputs of the orders, except the epoch.
        length: Positions in an epoch.
        num_batches: Batches in an epoch, for a sampler that declares `batch_cuts`. Its `_order`
            then begins with ``num_batches + 1`` bounds.
    """

    def __init__(self, signature: str, length: int, num_batches: int | None = None) -> None:
        self._signature = signature
        self._length = length
        self._num_cuts = 0 if num_batches is None else num_batches + 1

    def __len__(self) -> int:
        return self._length

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the records at positions ``start .. stop - 1`` of `epoch`, int64."""
        return np.array(self._stored(epoch)[self._num_cuts + start : self._num_cuts + stop])

    def batch_cuts(self, epoch: int) -> NDArray[np.int64]:
        """Return the bounds of the batches of `epoch`, int64 [B + 1]."""
        return self._stored(epoch)[: self._num_cuts]

    def _stored(self, epoch: int) -> NDArray[np.int64]:
        size = self._num_cuts + self._length
        return epoch_order(self._signature, epoch, size, lambda: self._order(epoch))

    def _order(self, epoch: int) -> NDArray[np.int64]:
        """Compute the records of an epoch by position, int64 [length], after any bounds."""
        raise NotImplementedError


_recent: dict[str, dict[int, NDArray[np.int64]]] = {}


def _remember(signature: str, epoch: int, order: NDArray[np.int64]) -> None:
    """Keep the newest orders of the samplers used last."""
    # Replaced, never changed: other threads read without a lock, which a fork could inherit locked.
    global _recent
    others = {name: orders for name, orders in _recent.items() if name != signature}
    epochs = {**_recent.get(signature, {}), epoch: order}
    _recent = _newest({**others, signature: _newest(epochs, _KEEP_EPOCHS)}, _KEEP_SAMPLERS)


def _newest(kept: dict[Any, Any], count: int) -> dict[Any, Any]:
    return dict(list(kept.items())[-count:])


class StoredTable:
    """A table that the processes of a machine map from one file; it pickles as the file's path.

    Args:
        name: Name of the content, ``table-...``.
        dtype: Type of the table.
        length: Length of the table.
        fill: Writes the table, if its file is missing.
        what: Name of the table in messages.
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

    @classmethod
    def of(cls, name: str, values: NDArray[Any], *, what: str) -> StoredTable:
        """Store an array, [length]."""
        fill = partial(np.copyto, src=values)
        return cls(name, values.dtype.type, len(values), fill, what=what)

    @property
    def array(self) -> NDArray[Any]:
        """The table, memory-mapped, read-only.

        Raises:
            ValueError: A user removed its file.
        """
        if self._opened is None:
            try:
                self._opened = map_npy(self._path)
            except FileNotFoundError:
                raise ValueError(
                    f"{self._what}: {self._path} was removed while it was in use; start the "
                    f"program again with trainer.resume=auto"
                ) from None
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        if self._opened is not None and not self._path.exists():
            # A user emptied the cache; a full disk affects only processes that start later.
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with whole_file(self._path) as temporary, open(temporary, "wb") as file:
                    np.save(file, self._opened)
        return {**self.__dict__, "_path": sent(str(self._path)), "_opened": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _path=Path(received(state["_path"])))


def _stored(
    name: str,
    dtype: type[np.generic],
    length: int,
    fill: Callable[[NDArray[Any]], None],
    *,
    what: str,
) -> tuple[Path, NDArray[Any]]:
    """Return the file and array [length] of a name; `fill` writes a missing array."""

    def make(path: Path) -> None:
        array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(length,))
        fill(array)
        array.flush()

    def load(path: Path) -> NDArray[Any] | None:
        array = map_npy(path)
        return array if array.shape == (length,) and array.dtype == np.dtype(dtype) else None

    what = f"{what}: {length:,} entries"
    return computed_once(name, ".npy", make=make, load=load, what=what)
