"""A storage that keeps what it reads, and is a storage like the one that it reads from."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from datasets.caching.entries import Entry, UncacheableError, pack, unpack
from datasets.protocols import ColumnStorage, Index, Storage
from datasets.sample import BadRecord, Record
from datasets.stage_times import CountedRecords

if TYPE_CHECKING:
    from datasets.caching.whole_images import WholeImages

_log = logging.getLogger(__name__)


class Store(Protocol):
    """Holds entries by record number, for all threads and processes that share it."""

    @property
    def is_private(self) -> bool:
        """Whether `get` gives memory of the caller's own."""

    @property
    def wants_more(self) -> bool:
        """Whether another entry may be admitted."""

    def get(self, index: int) -> NDArray[np.uint8] | None:
        """The entry of a record, uint8 [size_bytes], or None."""

    def put(self, index: int, entry: Entry) -> bool:
        """Keep an entry, if there is room; whether it was admitted."""


class CachedStorage:
    """Records of a storage, from a store where that has them.

    Bad records are not kept, nor what cannot be packed. Records are what the storage gives, but
    for an image that was decoded to be kept.

    Args:
        base: The storage.
        store: Keeps entries.
        prepare: Changes records before they are kept.
    """

    def __init__(self, base: Storage, store: Store, *, prepare: WholeImages | None = None) -> None:
        self.base = base
        self.store = store
        self._prepare = prepare
        self._has_warned = False

    def __str__(self) -> str:
        return str(self.base)

    def __len__(self) -> int:
        return len(self.base)

    @property
    def index(self) -> Index:
        """The index of the storage."""
        return self.base.index

    def fingerprint(self) -> str:
        """The storage's."""
        return self.base.fingerprint()

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read records, those that are not held from the storage, in one batched read."""
        indices = np.asarray(indices, np.int64)
        if indices.size and not 0 <= indices.min() <= indices.max() < len(self):
            return self.base.read(indices)  # which says what is wrong
        store = self.store
        damaged = getattr(store, "damaged", 0)
        decode_s = 0.0
        found: list[Any] = []
        missed = []
        for number, index in enumerate(indices.tolist()):
            payload = store.get(index)
            if payload is None:
                missed.append(number)
                found.append(None)
            else:
                found.append(unpack(payload, index, is_private=store.is_private))
        if missed:
            for number, record in zip(missed, self.base.read(indices[missed]), strict=True):
                if isinstance(record, Record) and store.wants_more:
                    start = time.perf_counter()
                    record = self._prepare(record) if self._prepare is not None else record
                    decode_s += time.perf_counter() - start
                    self._keep(record)
                found[number] = record
        return CountedRecords(
            found,
            hits=len(found) - len(missed),
            misses=len(missed),
            damaged=getattr(store, "damaged", 0) - damaged,
            decode_s=decode_s,
        )

    def _keep(self, record: Record) -> None:
        """Keep a record, if that is possible."""
        try:
            self.store.put(record.index, pack(self._frozen(record)))
        except UncacheableError as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("dataset.cache: %s: %r is not kept: %s", self, record.key, error)

    def _frozen(self, record: Record) -> Record:
        """The record with its decoded image read-only, so that it need not be copied when hit."""
        name = self._prepare.field if self._prepare is not None else None
        if name is None or not isinstance(image := record.fields.get(name), np.ndarray):
            return record
        image = image.view()
        image.flags.writeable = False
        return replace(record, fields={**record.fields, name: image})


class CachedColumns(CachedStorage):
    """The same over a storage of columns, which are not kept: they are one copy as it is."""

    base: ColumnStorage

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields of every record."""
        return self.base.fields

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, NDArray[Any]] | None:
        """Columns of the storage; see `datasets.protocols.ColumnStorage`."""
        return self.base.take(indices, fields, allocate=allocate)


def cached(base: Storage, store: Store, *, prepare: WholeImages | None = None) -> CachedStorage:
    """The storage with its store, of columns if it is one of columns."""
    kind = CachedColumns if isinstance(base, ColumnStorage) else CachedStorage
    return kind(base, store, prepare=prepare)
