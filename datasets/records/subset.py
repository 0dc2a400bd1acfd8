"""Present some records of a storage as a storage."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import ColumnStorage, Storage, StorageCapabilities, capabilities_of
from penstock.core.sample import BadRecord, Record
from penstock.core.stage_times import CountedRecords
from penstock.datasets.records.table import Table


class Subset:
    """A storage of some records of another storage: of its `rows`, integer [n], in order."""

    def __init__(self, base: Storage, rows: NDArray[Any]) -> None:
        # The table of an inner subset refers to rows of its base: read that base directly.
        self.base: Storage = base.base if isinstance(base, Subset) else base
        self._can = capabilities_of(self.base, StorageCapabilities)
        self._index = Table.of(base.index).take(rows)

    def __str__(self) -> str:
        return str(self.base)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def index(self) -> Table:
        """Return the index of the subset."""
        return self._index

    def fingerprint(self) -> str:
        """Hash the base's fingerprint and the rows."""
        return self._index.fingerprint()

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read the records at `indices`, int64 [n], relative to this subset."""
        indices = np.asarray(indices, np.int64)
        records = self.base.read(self._index.rows(indices))
        numbered = [
            replace(record, index=i) for i, record in zip(indices.tolist(), records, strict=True)
        ]
        return CountedRecords.of(numbered, [records])

    @property
    def capabilities(self) -> StorageCapabilities:
        """Return the capabilities of the base."""
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
        return held_bytes(self._index.rows(indices))

    def _shards(self) -> NDArray[np.int64]:
        """Return the positions where the shard of the base changes."""
        assert self._can.shards is not None
        rows = self._index.rows(np.arange(len(self)))
        shards = np.searchsorted(self._can.shards(), rows, side="right")
        return np.flatnonzero(np.diff(shards, prepend=0))

    def _columns(self) -> ColumnStorage:
        columns = self._can.columns
        assert columns is not None, "the base has no columns"
        return columns

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the fields of every record, if the base provides columns."""
        return self._columns().fields

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, NDArray[Any]] | None:
        """Return columns of the records at `indices`, int64 [n], relative to this subset."""
        return self._columns().take(self._index.rows(indices), fields, allocate=allocate)
