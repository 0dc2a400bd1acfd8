"""Add boxes, keypoints or masks from other files to the records of a storage."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import (
    Index,
    RecordAnnotations,
    Storage,
)
from penstock.core.sample import BadRecord, Record
from penstock.core.stage_times import CountedRecords
from penstock.datasets.records.index import cached_index
from penstock.datasets.records.table import Table
from penstock.datasets.records.wrapper import Wrapper


class AnnotatedStorage(Wrapper):
    """A storage whose records carry annotations from other files."""

    def __init__(self, base: Storage, annotations: Sequence[RecordAnnotations]) -> None:
        self.base = base
        self._annotations = tuple(annotations)
        self.index = self._joined(base.index)

    @property
    def field_classes(self) -> dict[str, tuple[str, ...]]:
        """Return class names by annotated field, such as ``box_labels`` or ``mask``."""
        return {field: names for a in self._annotations for field, names in a.classes.items()}

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read records; return a `BadRecord` for wrong annotations."""
        indices = np.asarray(indices, np.int64)
        records = read = self.base.read(indices)
        for source in self._annotations:
            fields = source.fields(indices)
            records = [_with(record, more) for record, more in zip(records, fields, strict=True)]
        return CountedRecords.of(records, [read])

    def held_bytes(self, indices: NDArray[np.int64]) -> NDArray[Any] | None:
        """Return the memory of the base's records."""
        return self.base.held_bytes(indices)

    def shards(self) -> NDArray[np.int64]:
        """Return the shards of the base."""
        return self.base.shards()

    def _joined(self, index: Index) -> Table:
        digest = hashlib.blake2b(index.fingerprint().encode(), digest_size=16)
        for source in self._annotations:
            digest.update(source.fingerprint().encode())
        content = digest.hexdigest()

        def build() -> Table:
            annotated = {k: values for a in self._annotations for k, values in a.columns.items()}
            columns = {name: index.column(name) for name in index.columns}
            return Table(
                index.raw_keys(np.arange(len(index))),
                columns | annotated,
                index.class_names,
                {"field_classes": self.field_classes, "annotated": sorted(annotated)},
                content=content,
            )

        for name in index.columns:  # the fingerprint does not cover all columns
            digest.update(name.encode() + np.ascontiguousarray(index.column(name)).tobytes())
        recipe: dict[str, Any] = {"storage": "annotated", "version": 3}
        recipe |= {"content": digest.hexdigest(), "classes": self.field_classes}
        return cached_index(recipe, build=build, is_current=lambda _: True)


def _with(record: Record | BadRecord, more: Mapping[str, Any] | str) -> Record | BadRecord:
    if isinstance(record, BadRecord):
        return record
    if isinstance(more, str):
        return BadRecord(record.index, record.key, more)
    return Record(record.index, record.key, {**record.fields, **more})
