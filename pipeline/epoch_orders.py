"""Store epoch orders and tables that must be computed whole: once per machine, memory-mapped."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.arrays import map_npy
from penstock.core.contracts import Sampler
from penstock.core.files import machine_folder
from penstock.core.machine_cache import computed_once, sent, signature_of

Int64Array = NDArray[np.int64]
_KEEP_EPOCHS = 2


def by_value(values: Int64Array) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Yield each distinct value, and the rows that have it."""
    for value in np.unique(values).tolist():
        yield value, np.flatnonzero(values == value)


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
        self._opened: dict[int, Int64Array] = {}

    def __len__(self) -> int:
        return self._length

    def indices(self, epoch: int, start: int, stop: int) -> Int64Array:
        """Return the record indices at positions `start` to `stop` - 1, int64 [stop - start]."""
        return np.array(self._stored(epoch)[self._num_cuts + start : self._num_cuts + stop])

    def cuts(self, epoch: int) -> Int64Array | None:
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

    @abstractmethod
    def _order(self, epoch: int) -> Int64Array:
        """Compute the record at each position of an epoch, int64 [length], after any bounds."""

    def _stored(self, epoch: int) -> Int64Array:
        """Return the result of `_order`, memory-mapped; one process of the machine computes it."""
        if (known := self._opened.get(epoch)) is not None:
            return known
        name, size = f"order-{self._signature}", self._num_cuts + self._length
        what = f"order of epoch {epoch}"
        order = _stored(f"{name}-{epoch}", lambda: self._order(epoch), (size,), np.int64, what)[1]
        # Replaced, never changed, because other threads read it without a lock.
        newest = [*self._opened.items()][1 - _KEEP_EPOCHS :]
        self._opened = {**dict(newest), epoch: order}
        past = machine_folder("computed") / f"{name}-{epoch - _KEEP_EPOCHS}.npy"
        past.unlink(missing_ok=True)
        return order

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}


class StoredTable:
    """A table that the processes of a machine map from one file; it pickles as the file's path.

    Args:
        values: The content, [n], or the values that decide it.
        kind: Name of the content for files and messages.
        compute: Returns the content, of the type of `values`; one process of the machine calls it.

    Attributes:
        digest: Hash of `values`.
    """

    def __init__(
        self, values: NDArray[Any], kind: str, compute: Callable[[], NDArray[Any]] | None = None
    ) -> None:
        content = np.ascontiguousarray(values).view(np.uint8).data
        self.digest = hashlib.blake2b(content, digest_size=12).hexdigest()
        self._what, name = f"table of {kind}", f"table-{kind}-{self.digest}"
        self._path: str | Path
        self._opened: NDArray[Any] | None
        compute = compute or (lambda: values)
        self._path, self._opened = _stored(name, compute, values.shape, values.dtype, self._what)

    @property
    def array(self) -> NDArray[Any]:
        """The table, memory-mapped, read-only."""
        if self._opened is None:
            self._opened = map_npy(self._path)
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_path": sent(str(self._path)), "_opened": None}


def _stored(
    name: str, compute: Callable[[], NDArray[Any]], shape: tuple[int, ...], dtype: Any, what: str
) -> tuple[Path, NDArray[Any]]:
    """Return the file of a name and its array; `compute` returns a missing array."""

    def make(path: Path) -> None:
        with open(path, "wb") as file:
            np.save(file, np.asarray(compute(), dtype))

    def load(path: Path) -> NDArray[Any] | None:
        array = map_npy(path)
        return array if (array.shape, array.dtype) == (shape, dtype) else None

    what = f"{what}: {shape[0]:,} entries"
    return computed_once(name, ".npy", make=make, load=load, what=what)
