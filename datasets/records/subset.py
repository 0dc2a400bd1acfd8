"""Some records of a storage, as a storage of their own."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import ColumnStorage, Storage, StorageCapabilities, capabilities_of
from penstock.core.sample import BadRecord, Record
from penstock.core.stage_times import CountedRecords
from penstock.datasets.records.index import Index
from penstock.datasets.records.memory_index import MemoryIndex


class Subset:
    """Some records of a storage, as a storage of its own.

    Args:
        base: The storage.
        rows: Its records that are in the subset, integer [n], in order.
    """

    def __init__(self, base: Storage, rows: NDArray[Any]) -> None:
        index = base.index
        # An Index knows the rows of what lies below an inner subset, whose records these are too.
        self.base: Storage = base
        if isinstance(base, Subset) and isinstance(index, Index):
            self.base = base.base
        self._can = capabilities_of(self.base, StorageCapabilities)
        # An Index keeps the rows itself, and pickles long ones as the file they lie in.
        self._rows = None if isinstance(index, Index) else rows
        self._index: Index | MemoryIndex = (
            index if isinstance(index, Index) else MemoryIndex.of(index)
        ).take(rows)

    def __str__(self) -> str:
        return str(self.base)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def index(self) -> Index | MemoryIndex:
        """The index of the subset."""
        return self._index

    def fingerprint(self) -> str:
        """Hash of the base's fingerprint and the rows."""
        return self._index.fingerprint()

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read the records at `indices`, int64 [n], numbered as in this subset."""
        indices = np.asarray(indices, np.int64)
        records = self.base.read(self._rows_at(indices))
        numbered = [
            replace(record, index=i) for i, record in zip(indices.tolist(), records, strict=True)
        ]
        return CountedRecords.of(numbered, [records])

    @property
    def capabilities(self) -> StorageCapabilities:
        """Those of its base."""
        base = self._can
        return StorageCapabilities(
            columns=self if base.columns else None,
            held_bytes=self._held_bytes if base.held_bytes else None,
            shards=self._shards if base.shards else None,
            wraps=self.base,
        )

    def _held_bytes(self, indices: NDArray[np.int64]) -> NDArray[Any] | None:
        held_bytes = self._can.held_bytes
        assert held_bytes is not None
        return held_bytes(self._rows_at(indices))

    def _shards(self) -> NDArray[np.int64]:
        """Find where the records of another shard of the base begin."""
        assert self._can.shards is not None
        rows = self._rows_at(np.arange(len(self)))
        shards = np.searchsorted(self._can.shards(), rows, side="right")
        return np.flatnonzero(np.diff(shards, prepend=0))

    def _columns(self) -> ColumnStorage:
        columns = self._can.columns
        assert columns is not None, "the base has no columns"
        return columns

    def _rows_at(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of the base at `indices`, int64 [n]."""
        if isinstance(self._index, Index):
            return self._index.rows(indices)
        assert self._rows is not None
        return self._rows[indices].astype(np.int64)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields of every record, where the base gives columns."""
        return self._columns().fields

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, NDArray[Any]] | None:
        """Columns of the records at `indices`, int64 [n], numbered as in this subset."""
        return self._columns().take(self._rows_at(indices), fields, allocate=allocate)
