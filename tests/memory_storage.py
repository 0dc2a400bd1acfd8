"""A storage in memory, and an index over its labels: for tests of what stands on storages."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from penstock.core.contracts import Index, Storage
from penstock.core.sample import BadRecord, Record


class MemoryIndex(Index):
    def __init__(self, keys: list[str], labels: np.ndarray) -> None:
        self._keys = keys
        self._labels = labels

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def columns(self) -> tuple[str, ...]:
        return ("label",)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        return tuple(f"class {i}" for i in range(int(self._labels.max()) + 1))

    def column(self, name: str) -> np.ndarray:
        return {"label": self._labels}[name]

    def keys(self, indices: np.ndarray) -> list[str]:
        return [self._keys[i] for i in indices.tolist()]

    def fingerprint(self) -> str:
        return hashlib.sha256("\n".join(self._keys).encode()).hexdigest()


class MemoryStorage(Storage):
    """Records by number; a field dict that is a string is a bad record with that cause."""

    def __init__(self, fields: list[dict[str, Any] | str]) -> None:
        self.fields = fields
        self.reads: list[list[int]] = []

    def __str__(self) -> str:
        return "memory here"

    def __len__(self) -> int:
        return len(self.fields)

    @property
    def index(self) -> MemoryIndex:  # type: ignore[override]
        labels = [0 if isinstance(f, str) else f.get("label", 0) for f in self.fields]
        return MemoryIndex([self._key(i) for i in range(len(self))], np.array(labels))

    def read(self, indices: np.ndarray) -> list[Record | BadRecord]:
        self.reads.append(indices.tolist())
        return [
            BadRecord(i, self._key(i), fields)
            if isinstance(fields := self.fields[i], str)
            else Record(i, self._key(i), dict(fields))
            for i in indices.tolist()
        ]

    @staticmethod
    def _key(index: int) -> str:
        return f"images/{index}.jpg"
