"""Present some records of a storage as a storage."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Storage
from penstock.core.sample import BadRecord, Record
from penstock.core.stage_times import CountedRecords
from penstock.datasets.records.table import Table
from penstock.datasets.records.wrapper import Wrapper


class Subset(Wrapper):
    """A storage of some records of another storage: of its `rows`, integer [n], in order.

    Indices and results are relative to this subset.
    """

    index: Table

    def __init__(self, base: Storage, rows: NDArray[Any]) -> None:
        # The table of an inner subset refers to rows of its base: read that base directly.
        self.base = base.base if isinstance(base, Subset) else base
        self.index = Table.of(base.index).take(rows)

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read the records at `indices`, int64 [n]."""
        indices = np.asarray(indices, np.int64)
        records = self.base.read(self.index.rows(indices))
        numbered = [
            replace(record, index=i) for i, record in zip(indices.tolist(), records, strict=True)
        ]
        return CountedRecords.of(numbered, [records])

    def held_bytes(self, indices: NDArray[np.int64]) -> NDArray[Any] | None:
        """Return the memory of records."""
        return self.base.held_bytes(self.index.rows(indices))

    def shards(self) -> NDArray[np.int64]:
        """Return the positions where the shard of the base changes."""
        rows = self.index.rows(np.arange(len(self)))
        shards = np.searchsorted(self.base.shards(), rows, side="right")
        return np.flatnonzero(np.diff(shards, prepend=0))

    @property
    def column_fields(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the fields of the base."""
        return self.base.column_fields

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, Any] | None:
        """Return columns of the records at `indices`, int64 [n]."""
        return self.base.take(self.index.rows(indices), fields, allocate=allocate)
