"""Keep an index in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Index


class MemoryIndex(Index):
    """Metadata of every record, in memory; each column has the shape [n]."""

    def __init__(
        self,
        keys: Sequence[str],
        columns: Mapping[str, Any] | None = None,
        class_names: Sequence[str] | None = None,
        field_classes: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self._keys = list(keys)
        self._columns = {name: np.asarray(values) for name, values in (columns or {}).items()}
        self.columns = tuple(self._columns)
        self.class_names = None if class_names is None else tuple(class_names)
        self.field_classes = dict(field_classes or {})
        for name, values in self._columns.items():
            if values.shape != (len(self._keys),):
                raise ValueError(
                    f"index: column {name!r} has the shape {values.shape}, expected one value "
                    f"for each of the {len(self._keys)} keys"
                )

    @classmethod
    def of(cls, index: Index) -> MemoryIndex:
        """Copy any index."""
        keys = index.keys(np.arange(len(index)))
        columns = {name: index.column(name) for name in index.columns}
        return cls(keys, columns, index.class_names, index.field_classes)

    def __len__(self) -> int:
        return len(self._keys)

    def column(self, name: str) -> NDArray[Any]:
        """Return a column, [len(self)]; a KeyError lists the columns."""
        return self._columns[name] if name in self._columns else super().column(name)

    def keys(self, indices: NDArray[np.int64]) -> list[str]:
        """Return the keys of `indices`, int64 [n]."""
        return [self._keys[i] for i in np.asarray(indices).tolist()]

    def take(self, indices: NDArray[Any]) -> MemoryIndex:
        """Return the index of selected rows."""
        columns = {name: values[indices] for name, values in self._columns.items()}
        return MemoryIndex(self.keys(indices), columns, self.class_names, self.field_classes)

    def fingerprint(self) -> str:
        """Hash keys, sizes and labels."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps([self._keys, self.class_names]).encode())
        for name in ("label", "size_bytes"):
            if name in self._columns:
                digest.update(json.dumps([name, self._columns[name].tolist()]).encode())
        return digest.hexdigest()
