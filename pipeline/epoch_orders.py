"""Store epoch orders and tables that must be computed whole: once per machine, memory-mapped."""

from __future__ import annotations

import contextlib
import hashlib
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.arrays import map_npy
from penstock.core.contracts import Sampler
from penstock.core.files import whole_file
from penstock.core.machine_cache import (
    computed_once,
    files_of,
    received,
    remove_if_unused,
    sent,
    signature_of,
)

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
        signature: Identifies the order, apart from the epoch (`core.machine_cache.signature_of`).
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
        if int(past) <= epoch - _KEEP_EPOCHS:
            remove_if_unused(path)
    return order


class StoredOrderSampler(Sampler):
    """A sampler whose epochs are computed whole: one at a time, once per machine.

    Args:
        table: Values of the records, which decide the orders, or None.
        length: Number of positions in an epoch.
        seed: Seed of the run.
        num_batches: Number of batches, if `_order` returns their bounds before the order.
        more: Other plain values that decide the orders.
    """

    def __init__(
        self,
        table: StoredTable | None,
        length: int,
        seed: int,
        *,
        num_batches: int | None = None,
        **more: Any,
    ) -> None:
        self._table, self._length, self._seed = table, length, seed
        self._num_cuts = 0 if num_batches is None else num_batches + 1
        more |= {"table": self.fingerprint(), "length": length, "num_batches": num_batches}
        self._signature = signature_of(sampler=type(self).__qualname__, seed=seed, **more)

    def __len__(self) -> int:
        return self._length

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the record indices at positions `start` to `stop` - 1, int64 [stop - start]."""
        return np.array(self._stored(epoch)[self._num_cuts + start : self._num_cuts + stop])

    def cuts(self, epoch: int) -> NDArray[np.int64] | None:
        """Return the bounds of an epoch's batches, int64 [B + 1]."""
        return self._stored(epoch)[: self._num_cuts] if self._num_cuts else None

    def fingerprint(self) -> str:
        """Return a hash of the table, or an empty string."""
        return "" if self._table is None else self._table.digest

    @property
    def _values(self) -> NDArray[Any]:
        """The table, memory-mapped, read-only."""
        assert self._table is not None
        return self._table.array

    def _stored(self, epoch: int) -> NDArray[np.int64]:
        size = self._num_cuts + self._length
        return epoch_order(self._signature, epoch, size, lambda: self._order(epoch))

    @abstractmethod
    def _order(self, epoch: int) -> NDArray[np.int64]:
        """Compute the record at each position of an epoch, int64 [length], after any bounds."""


_recent: dict[str, dict[int, NDArray[np.int64]]] = {}


def _remember(signature: str, epoch: int, order: NDArray[np.int64]) -> None:
    """Keep the newest orders of each of the samplers that were asked last."""
    # Replaced, never changed: other threads read it without a lock, which a forked process
    # could inherit held.
    global _recent
    others = {name: orders for name, orders in _recent.items() if name != signature}
    epochs = {**_recent.get(signature, {}), epoch: order}
    _recent = _newest({**others, signature: _newest(epochs, _KEEP_EPOCHS)}, _KEEP_SAMPLERS)


def _newest(kept: dict[Any, Any], count: int) -> dict[Any, Any]:
    return dict(list(kept.items())[-count:])


class StoredTable:
    """A table that the processes of a machine map from one file; it pickles as the file's path.

    Args:
        values: The content, or the values that decide it, [n].
        kind: Name of the content for files and messages.
        dtype: Type of the content; None: the type of `values`.
        fill: Writes the content, [n], if it is not stored yet; None copies `values`.

    Attributes:
        digest: Hash of `values`.
    """

    def __init__(
        self,
        values: NDArray[Any],
        kind: str,
        dtype: type[np.generic] | None = None,
        *,
        fill: Callable[[NDArray[Any]], None] | None = None,
    ) -> None:
        self.digest = digest_of(values)
        self._what = f"table of {kind}"
        self._opened: NDArray[Any] | None
        self._path, self._opened = _stored(
            f"table-{kind}-{self.digest}",
            dtype or values.dtype.type,
            len(values),
            fill or partial(np.copyto, src=values),
            what=self._what,
        )

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
                    f"{self._what}: {self._path} was removed while it was in use; resume with "
                    f"trainer.resume=auto"
                ) from None
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        if self._opened is not None and not self._path.exists():
            # The cache was emptied; without room for the file, open tables stay usable.
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
