"""A storage whose records have annotations from elsewhere: boxes, keypoints, masks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.held_bytes import held_bytes
from datasets.index import Index, write_index
from datasets.index_cache import cached_index
from datasets.memory_index import MemoryIndex
from datasets.protocols import RecordAnnotations, Storage
from datasets.sample import BadRecord, Record


class AnnotatedStorage:
    """A storage and what is known of its records; a storage itself.

    Args:
        base: The storage.
        annotations: What is known, from one or more sources.
    """

    def __init__(self, base: Storage, annotations: Sequence[RecordAnnotations]) -> None:
        self.base = base
        self._annotations = tuple(annotations)
        index = base.index if isinstance(base.index, Index) else MemoryIndex.of(base.index)
        self._index = self._joined(index)

    def __str__(self) -> str:
        return str(self.base)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def index(self) -> Index:
        """The storage's index, with the columns of the annotations."""
        return self._index

    @property
    def field_classes(self) -> dict[str, tuple[str, ...]]:
        """Names of the classes by annotated field: ``box_labels``, ``mask``."""
        return {field: names for a in self._annotations for field, names in a.classes.items()}

    def fingerprint(self) -> str:
        """Hash of the records' identity and of everything that is annotated."""
        return self._index.fingerprint()

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read records; one whose annotations are wrong is bad.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
        """
        indices = np.asarray(indices, np.int64)
        records = self.base.read(indices)
        for source in self._annotations:
            fields = source.fields(indices)
            records = [_with(record, more) for record, more in zip(records, fields, strict=True)]
        return records

    def held_bytes(self, indices: NDArray[np.int64]) -> NDArray[Any] | None:
        """What the storage says of these records; see `datasets.protocols.MappedStorage`."""
        return held_bytes(self.base, indices)

    def _joined(self, index: Index | MemoryIndex) -> Index:
        digest = hashlib.blake2b(index.fingerprint().encode(), digest_size=16)
        for source in self._annotations:
            digest.update(source.fingerprint().encode())
        content = digest.hexdigest()

        def build(path: Any) -> None:
            columns = {name: index.column(name) for name in index.columns}
            for source in self._annotations:
                columns |= source.columns
            write_index(
                path,
                keys=_raw_keys(index),
                columns=columns,
                class_names=index.class_names,
                metadata={"field_classes": self.field_classes},
                content=content,
            )

        recipe = {"storage": "annotated", "content": content, "classes": self.field_classes}
        return cached_index(recipe, build=build, is_current=lambda _: True)


def _raw_keys(index: Index | MemoryIndex) -> list[bytes]:
    if isinstance(index, Index):
        return list(index.iter_raw_keys())
    return [key.encode() for key in index.keys(np.arange(len(index)))]


def _with(record: Record | BadRecord, more: Mapping[str, Any] | str) -> Record | BadRecord:
    if isinstance(record, BadRecord):
        return record
    if isinstance(more, str):
        return BadRecord(record.index, record.key, more)
    return Record(record.index, record.key, {**record.fields, **more})
