"""Present a storage in another way: some of its records, or with annotations."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Allocate, Index, RecordAnnotations, Storage
from penstock.core.sample import BadRecord, Record
from penstock.datasets.records.table import Table, cached_index


class Wrapper(Storage):
    """A storage over `base`, with its name, state and columns."""

    def __init__(self, base: Storage, index: Index | None = None) -> None:
        self.base = base
        self.index = base.index if index is None else index
        self.is_remote, self.column_fields = base.is_remote, base.column_fields
        self.nullable = base.nullable

    def __str__(self) -> str:
        return str(self.base)

    def rows(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the base's indices of `indices`, int64 [n]."""
        return np.asarray(indices, np.int64)

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Allocate | None = None,
    ) -> dict[str, Any] | None:
        return self.base.take(self.rows(indices), fields, allocate=allocate)

    def held_bytes(self, indices: NDArray[np.int64]) -> NDArray[Any] | None:
        return self.base.held_bytes(self.rows(indices))

    def shards(self) -> NDArray[np.int64]:
        return self.base.shards()

    def state(self) -> Any:
        return self.base.state()


class Subset(Wrapper):
    """The records of another storage at its `rows`, integer [n], in order."""

    index: Table

    def __init__(self, base: Storage, rows: NDArray[Any]) -> None:
        # The table of an inner subset refers to rows of its base: read that base directly.
        inner = base.base if isinstance(base, Subset) else base
        super().__init__(inner, Table.of(base.index).take(rows))

    def rows(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.index.rows(indices)

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        records = self.base.read(self.rows(indices))
        numbers = np.asarray(indices, np.int64).tolist()
        return [replace(record, index=i) for i, record in zip(numbers, records, strict=True)]

    def shards(self) -> NDArray[np.int64]:
        shards = np.searchsorted(self.base.shards(), self.rows(np.arange(len(self))), side="right")
        return np.flatnonzero(np.diff(shards, prepend=0))


class AnnotatedStorage(Wrapper):
    """A storage whose records carry annotations from other files."""

    take = Storage.take

    def __init__(self, base: Storage, annotations: Sequence[RecordAnnotations]) -> None:
        self._annotations = tuple(annotations)
        super().__init__(base, self._joined(base.index))
        self.column_fields = ()

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        indices = self.rows(indices)
        records = self.base.read(indices)
        for source in self._annotations:
            fields = source.fields(indices)
            records = [_with(record, more) for record, more in zip(records, fields, strict=True)]
        return records

    def state(self) -> Any:
        state = self.base.state()
        return state and [state, *(source.state() for source in self._annotations)]

    def _joined(self, index: Index) -> Table:
        prints = [index.fingerprint(), *(source.fingerprint() for source in self._annotations)]
        classes = {field: names for a in self._annotations for field, names in a.classes.items()}
        digest = hashlib.blake2b()
        for name in index.columns:  # the fingerprint does not cover all columns
            digest.update(name.encode() + np.ascontiguousarray(index.column(name)).tobytes())

        def build() -> Table:
            annotated = {k: values for a in self._annotations for k, values in a.columns.items()}
            table = Table.of(index)
            metadata = {"field_classes": classes, "annotated": sorted(annotated)}
            columns = {**table.arrays, **annotated}
            return table.replaced(columns=columns, metadata=metadata, content=repr(prints))

        recipe = {"storage": "annotated", "version": 4, "classes": classes, "prints": prints}
        return cached_index({**recipe, "columns": digest.hexdigest()}, build=build)


def _with(record: Record | BadRecord, more: Mapping[str, Any] | str) -> Record | BadRecord:
    if isinstance(record, BadRecord):
        return record
    if isinstance(more, str):
        return BadRecord(record.index, record.key, more)
    return Record(record.index, record.key, {**record.fields, **more})
